"""Index of the sessions of a run by step and split, for the page of `verl-mas view`. Each session has numbers and short
texts for the list and its filters, and one long text for the search. `curves_of` collects the metrics by step."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby
from statistics import fmean

from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.results.sessions.run import RunFolder
from verl_mas.run_folder.metrics.file import Step
from verl_mas.run_folder.records import Record, listed, question_of
from verl_mas.run_folder.session_files import PARTITIONS, SessionFile
from verl_mas.verl_.types import Fields

TITLE = 140
SEARCHED = 24_000_000  # characters of all searched texts, shared equally by the sessions
SEARCHED_OF_ONE = 40_000
STORY = 4  # maximum number of steps at which a page shows the same task (see `story_of`)
# LISTED: columns of the index that are copied from a list entry. COLUMNS: these columns, and computed columns.
LISTED = ("session", "status", "reward", "agents", "policies", "acts")
COLUMNS = (*LISTED, "answer", "malformed", "faults", "tokens", "seconds")
END = "\n"  # separates the searched texts of sessions; `one_line` removes it from each text


@dataclass(frozen=True)
class StepPart:
    """The sessions of one step in training, or in validation."""

    partition: str
    step: int
    # A run that trains appends to its files, so their sizes show whether the part has changed.
    files: tuple[SessionFile, ...]
    run: str = ""  # A or B on a page of two runs


class SessionSource:
    """The session records of a run, which may be written while they are read."""

    def __init__(self, run: RunFolder, mark: str = ""):
        self.run, self.mark = run, mark
        self._index: SessionIndex | None = None

    def parts(self, steps: tuple[int, int] | None = None) -> list[StepPart]:
        """List the parts by time: a validation follows the training of its step."""
        folder = self.run.trajectories
        if self._index is not None:
            self._index.refresh()
        elif folder is not None and any((folder / partition).is_dir() for partition in PARTITIONS):
            self._index = SessionIndex(folder)  # the folders exist only after the first session was written
        files = self._index.files if self._index else {}
        return [
            StepPart(partition, step, tuple(files[partition, step]), self.mark)
            for partition, step in sorted(files, key=lambda key: (key[1], PARTITIONS.index(key[0])))
            if steps is None or steps[0] <= step <= steps[1]
        ]

    def sessions(self, part: StepPart) -> list[Record]:
        """List the sessions of a part, group by group. Groups are ordered by the end of their first session."""
        assert self._index is not None
        groups: dict[tuple[str | None, str], list[Record]] = defaultdict(list)
        for record in self._index.records(self._index.by_step[part.partition, part.step]):
            groups[record["attempt"], record["uid"]].append(record)
        return [record for group in groups.values() for record in sorted(group, key=lambda record: record["session"])]


@dataclass(frozen=True)
class Group:
    """The sessions of one task in one step."""

    uid: str
    task: int  # identifies the task: the same number at every step, but another number in validation than in training
    title: str
    uniform: bool  # whether all rewards are equal, so that nothing is learned
    entries: tuple[Fields, ...]  # one per session: COLUMNS, the `searched` text, and whether this text was `cut`
    source: str

    @property
    def reward(self) -> float:
        """The reward of the first session; 0 if it has none."""
        found = self.entries[0]["reward"]
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else 0.0


@dataclass(frozen=True)
class Page:
    """One step of the index. `chunks` has the name and the number of sessions of each chunk of this step."""

    part: StepPart
    groups: tuple[Group, ...]
    chunks: tuple[tuple[str, int], ...]

    @property
    def entries(self) -> list[Fields]:
        return [entry for group in self.groups for entry in group.entries]


def groups_of(sessions: Sequence[Record], searched: int = SEARCHED_OF_ONE) -> tuple[Group, ...]:
    """Group adjacent sessions of a task. The search gets `searched` characters of each session."""
    groups = []
    for (_, uid), group in groupby(sessions, lambda record: (record.get("attempt"), record["uid"])):
        records = list(group)
        entries = tuple(_entry(record, searched) for record in records)
        source = str(records[0]["task"].get("data_source"))
        title = one_line(question_of(records[0]))[:TITLE]
        groups.append(Group(uid, _task_of(records[0]), title, bool(records[0].get("uniform")), entries, source))
    return tuple(groups)


def _task_of(record: Record) -> int:
    task = record["task"]
    known = (task.get("data_source"), task.get("index"), question_of(record), task.get("ground_truth"))
    return hash((record["partition"], *map(str, known)))


def _entry(record: Record, searched: int) -> Fields:
    acts, task, entry = record["acts"], record["task"], listed(record)
    # Replies come last, so that a cut text has the complete question, answers and faults.
    parts = [
        f"{entry.uid} {entry.source or ''} {record['outcome']['answer'] or ''} {task.get('ground_truth') or ''}",
        question_of(record),
        *(f"{fault['kind']} {fault['cause']}" for fault in record["faults"]),
        *(f"{act['agent']} {act['malformed'] or ''} {act['text']}" for act in acts),
    ]
    texts, cut = cut_to(parts, searched)
    return {
        **{name: getattr(entry, name) for name in LISTED},
        "answer": one_line(entry.answer),
        "malformed": _once(act["agent"] for act in acts if act["malformed"] is not None),
        "faults": _once(entry.faults),
        "tokens": sum(act.get("sampled_tokens", act["response_tokens"]) for act in acts),
        "seconds": round(entry.seconds, 2),
        "searched": texts,
        "cut": cut,
    }


def _once(names: Iterable[str]) -> list[str]:
    """Return each name once, in the order of first occurrence."""
    return list(dict.fromkeys(names))


def one_line(text: str) -> str:
    return " ".join(text.split())


def cut_to(parts: Sequence[str], limit: int) -> tuple[tuple[str, ...], bool]:
    """Shorten each part to one line in lower case, with about `limit` characters in total. Return the lines, and
    whether a part was cut.

    A part that is too long keeps its beginning and its end, because a reply usually ends with its answer.
    """
    cut, lines = False, []
    for number, part in enumerate(parts):
        text, share = one_line(part).lower(), max(limit, 0) // (len(parts) - number)
        if len(text) > share:
            cut, text = True, f"{text[: share // 2]} {text[len(text) - share // 2 :]}"
        lines.append(text)
        limit -= len(text)
    return tuple(lines), cut


def story_of(pages: Sequence[Page]) -> list[list[tuple[StepPart, Group]]]:
    """Choose a task, and return its groups, one per run, at its first step, its last step and two steps between.

    Candidates are the tasks that occur at the largest number of steps. If these tasks have several data sources, only
    the tasks with the data source of the first task are candidates. The chosen task is the candidate whose rewards are
    closest to the candidates' mean rewards.
    """
    tasks: dict[int, dict[int, dict[str, tuple[StepPart, Group]]]] = defaultdict(lambda: defaultdict(dict))
    for page in pages:
        for group in page.groups:
            tasks[group.task][page.part.step].setdefault(page.part.run, (page.part, group))
    runs = len({page.part.run for page in pages})
    by_task = [[[*found.values()] for found in steps.values() if len(found) == runs] for steps in tasks.values()]
    most = max(map(len, by_task), default=0)
    if not most:
        return []
    known = [steps for steps in by_task if len(steps) == most]
    known = [steps for steps in known if steps[0][0][1].source == known[0][0][0][1].source]
    rewards = [[group.reward for found in steps for _, group in found] for steps in known]
    means = [fmean(of_step) for of_step in zip(*rewards, strict=True)]
    distances = [sum((one - mean) ** 2 for one, mean in zip(own, means, strict=True)) for own in rewards]
    story = known[distances.index(min(distances))]
    return [story[place] for place in sorted({round(part * (most - 1) / (STORY - 1)) for part in range(STORY)})]


def index_of(pages: Sequence[Page], about: Mapping[str, object], agents: Sequence[str] = ()) -> dict[str, object]:
    """Make the index. `agents`: the agents in the order of the configuration, which determines their colours."""
    groups = [group for page in pages for group in page.groups]
    entries = [entry for group in groups for entry in group.entries]
    chunks = [chunk for page in pages for chunk in page.chunks]
    columns = {name: [entry[name] for entry in entries] for name in COLUMNS}
    columns["chunk"] = [number for number, (_, size) in enumerate(chunks) for _ in range(size)]
    columns["place"] = [place for _, size in chunks for place in range(size)]
    # Number the tasks in the order of first occurrence.
    tasks: dict[int, int] = defaultdict(count().__next__)
    steps = story_of(pages)
    return {
        **about,
        "agents": _once([*agents, *chain.from_iterable(columns["agents"])]),
        "policies": _once(chain.from_iterable(columns["policies"])),
        "chunks": [name for name, _ in chunks],
        "blocks": {
            "run": [page.part.run for page in pages],
            "partition": [page.part.partition for page in pages],
            "step": [page.part.step for page in pages],
            "size": [len(page.entries) for page in pages],
        },
        "groups": {
            "uid": [group.uid for group in groups],
            "task": [tasks[group.task] for group in groups],
            "title": [group.title for group in groups],
            "uniform": [group.uniform for group in groups],
            "size": [len(group.entries) for group in groups],
        },
        "columns": columns,
        "story": tasks[steps[0][0][1].task] if steps else None,
    }


def searched_of(number: int) -> int:
    """Return the number of characters that are searched in each of `number` sessions."""
    return min(SEARCHED_OF_ONE, SEARCHED // max(number, 1))


def search_of(pages: Sequence[Page]) -> tuple[str, int]:
    """Return the text that the page searches, a line per session, and the number of sessions whose text was cut."""
    entries = [entry for page in pages for entry in page.entries]
    shortened = [cut_to(entry["searched"], searched_of(len(entries))) for entry in entries]
    missing = sum(cut or entry["cut"] for entry, (_, cut) in zip(entries, shortened, strict=True))
    return END.join(" ".join(texts) for texts, _ in shortened), missing


def curves_of(logged: Mapping[str, Sequence[Step]], pages: Iterable[Page]) -> dict[str, object]:
    """Return the logged metrics of the runs. A run without metrics has the rewards of its sessions instead."""
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for mark, step in ((mark, step) for mark, steps in logged.items() for step in steps):
        by_step[step.number].update({f"{mark} {name}".strip(): value for name, value in step.values.items()})
    for page in (page for page in pages if not logged[page.part.run]):
        given = (entry["reward"] for entry in page.entries)
        rewards = [reward for reward in given if isinstance(reward, int | float)]
        if rewards:
            name = "val-core/sessions/reward/mean@1" if page.part.partition == "val" else "session/reward/mean"
            by_step[page.part.step][f"{page.part.run} {name}".strip()] = fmean(rewards)
    numbers = sorted(by_step)
    names = sorted({name for values in by_step.values() for name in values})

    def short(value: float | None) -> float | None:
        """Round to five digits, because more digits cannot be seen in a curve."""
        return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None

    return {
        "steps": numbers,
        "values": {name: [short(by_step[number].get(name)) for number in numbers] for name in names},
    }
