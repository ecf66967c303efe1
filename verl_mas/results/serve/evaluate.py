"""Sessions of a trained team on the tasks of a file, and their results. Each session is written when it has ended, so
an evaluation that was stopped can be continued."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean

from verl_mas.data import own_rows
from verl_mas.errors import ConfigError, DataError
from verl_mas.results.serve.runtime import EndedSession, Runtime, quiet_import
from verl_mas.run_folder.disk import append_line, write_whole, writing
from verl_mas.run_folder.records import plain
from verl_mas.trainer.checkpoint import fingerprint
from verl_mas.trainer.pass_at_k import SOLVED, ks, mean_of_sets, pass_at_k, report, with_interval
from verl_mas.verl_.row import GLOBAL_STEPS, SESSION_ID, UID
from verl_mas.verl_.types import Fields
from verl_mas.workflow.run import many
from verl_mas.workflow.session import Scorer
from verl_mas.workflow.task import Task
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile

FORMAT = 1
MEDIA = ("videos", "audios")
OF_ACTS = ("agent", "turn", "text", "malformed", "truncated", "reward")  # fields of an act that a record copies
WRITTEN = "each session is written when it has ended"
# The index of a task, and the index of a session among the sessions on that task.
Key = tuple[int, int]
Table = dict[str, dict[str, float]]  # data source -> name of a metric -> value


def identity_of(folder: Path, team: TeamFile, data: Path, engine: object, sampling: object) -> Fields:
    """Identity of all sessions in one file. Sessions in a file with another identity are not reused.

    `engine` describes the servers of the policies, in this process or at endpoints.
    """
    of_team, of_data = (hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in (folder / TEAM_FILE, data))
    weights = {name: fingerprint(folder / policy.folder) for name, policy in team.policies.items() if policy.folder}
    served = {"engine": engine, "sampling": sampling, "weights": weights}
    return {"team": of_team, "step": team.step, "data": of_data, **served}


@dataclass
class Results:
    """The file of an evaluation: a line with the identity of its sessions, then a line per session."""

    path: Path
    identity: Fields
    records: dict[Key, Fields] = field(default_factory=dict)
    replaces: bool = False

    @classmethod
    def open(cls, path: Path, identity: Fields, *, force: bool) -> Results:
        """Open the file, and read the sessions of an earlier call. With `force`, the file of another evaluation is
        replaced only when sessions begin, so it is kept if the team cannot be loaded."""
        results = cls(path, identity, replaces=force and path.exists())
        with writing(path, WRITTEN):
            if not path.exists():
                results._write_head()
            elif not force:
                results._read()
        return results

    def begin(self) -> None:
        """Prepare the file for the first session."""
        if self.replaces:
            with writing(self.path, WRITTEN):
                self._write_head()
            self.replaces = False

    def add(self, record: Fields) -> None:
        self.records[_key(record)] = record
        with writing(self.path, WRITTEN):
            append_line(self.path, _line(record))

    def missing(self, tasks: int, sessions: int) -> list[Key]:
        """List the sessions that are missing or failed."""
        wanted = [(task, session) for task in range(tasks) for session in range(sessions)]
        return [key for key in wanted if key not in self.records or self.records[key]["failed"]]

    def of(self, tasks: int, sessions: int) -> list[Fields]:
        return [self.records[task, session] for task in range(tasks) for session in range(sessions)]

    def _write_head(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, f"{_line({'format': FORMAT, **self.identity})}\n")

    def _read(self) -> None:
        # Split only at \n, because a reply may contain other line separators.
        head, *lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        before = _parsed(head)
        if before is None or before.get("format") != FORMAT:
            rule = "what exists is kept, and an evaluation continues its own file"
            fix = "choose another --out, or add --force to replace it"
            raise ConfigError(f"--out {self.path} is not of an evaluation", rule=rule, fix=fix)
        identity = json.loads(_line(self.identity))
        other = [name for name, value in identity.items() if before.get(name) != value]
        if other:
            rule = "an evaluation continues with the team, the data, the seed and the sampling that it began with"
            fix = "choose another --out, or add --force to restart it"
            raise ConfigError(f"--out {self.path} has sessions with another {', '.join(other)}", rule=rule, fix=fix)
        for line in lines:
            # If an evaluation was killed, the last line of its file may be cut.
            if (record := _parsed(line)) is not None and "task" in record:
                self.records[_key(record)] = record


def read_rows(path: Path, prompt_key: str, limit: int | None = None) -> list[Fields]:
    """Read rows as verl's dataset makes them, with the messages (texts and images) as `raw_prompt`."""
    rows = []
    for number, row in enumerate(islice(own_rows.read(path), limit)):
        where = f"--data {path}, row {number}"
        if media := next((name for name in MEDIA if row.get(name)), None):
            rule = "an evaluation asks in text and images"
            raise DataError(f"{where} has {media}", rule=rule, fix="leave such rows out")
        fields = own_rows.as_dataset(row, where, prompt_key)
        rows.append({name: value for name, value in fields.items() if name not in (own_rows.IMAGES, *MEDIA)})
    if not rows:
        raise DataError(f"--data {path} has no row", rule="it has a row per task", fix="give another file")
    return rows


@dataclass
class Evaluation:
    """An evaluation of `rows`, each with `sessions` sessions."""

    runtime: Runtime
    rows: Sequence[Fields]
    sessions: int
    results: Results
    concurrency: int = 512  # twice an engine's default limit, so that engines stay busy while sessions are scored

    async def run(self, on_record: Callable[[Fields], None]) -> None:
        """Run the missing sessions, then close the team."""
        missing = self.results.missing(len(self.rows), self.sessions)
        try:
            self.results.begin()
            async for record in many(missing, self._record, self.concurrency, ordered=False):
                self.results.add(record)
                on_record(record)
        finally:
            await self.runtime.aclose()

    @cached_property
    def _score(self) -> Scorer:
        with quiet_import():
            from verl_mas.results.serve.scoring import VerlScorer
        return VerlScorer(self.runtime)

    async def _record(self, key: Key) -> Fields:
        number, session = key
        row, step = self.rows[number], self.runtime.file.step or 0
        # The name of a task, and so its seed, is the same in every evaluation. `extra_info` is copied, because a reward
        # function may write into it.
        name = {UID: f"eval-{number}", SESSION_ID: session, GLOBAL_STEPS: step}
        fields = {**row, **name, "extra_info": dict(row["extra_info"])}
        task = Task.of_row(fields, validate=True, greedy=False)
        return _record_of(await self.runtime.session(task, score=self._score), key)


def _record_of(ended: EndedSession, key: Key) -> Fields:
    session, failed = ended.result.session, ended.result.failed
    reward = 0.0 if failed else session.team_reward or 0.0
    accuracy = None if failed else session.info.get("acc")
    return {
        "task": key[0],
        "session": key[1],
        "source": session.task.data_source or "unknown",
        "failed": failed,
        "reward": reward,
        # The accuracy if the scorer returns one, else the reward, as in validation.
        "value": reward if accuracy is None else float(str(accuracy)),
        "info": {} if failed else session.info,
        "answer": session.answer,
        "ground_truth": session.task.ground_truth,
        "acts": [
            {name: getattr(reply, name) for name in OF_ACTS}
            | {
                "tokens": reply.generation.sampled,
                "tool_calls": len(reply.tool_calls),
                "tool_errors": sum(call.error is not None for call in reply.tool_calls),
            }
            for reply in session.replies
            if not reply.probe
        ],
        "faults": [{"kind": one.kind.value, "agent": one.agent, "cause": one.cause} for one in ended.result.faults],
        "tokens": {"prompt": ended.usage.prompt, "completion": ended.usage.completion},
        "seconds": round(session.seconds, 3),
    }


def _key(record: Fields) -> Key:
    return int(record["task"]), int(record["session"])


def _line(record: Mapping[str, object]) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, default=plain)
    except (TypeError, ValueError) as error:
        rule = "Outcome.info and the ground truth of a task are stored as JSON"
        fix = "use text as keys in every mapping"
        raise DataError(f"the record of a session: {error}", rule=rule, fix=fix) from error


def _parsed(line: str) -> Fields | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# Results: pass@k per data source, a row per agent, and the difference between two teams on the same tasks.


def summary(records: Sequence[Fields]) -> Fields:
    """Summarise sessions. Failed sessions count as 0, as in validation."""
    failed = [record for record in records if record["failed"]]
    # mean@n and pass@k with intervals over tasks, as in validation.
    sources: Table = {source: dict(report(list(tasks.values()))) for source, tasks in _by_source(records).items()}
    if overall := mean_of_sets(sources):
        sources["mean_of_sets"] = overall
    acts: dict[str, list[Fields]] = defaultdict(list)
    for act in (act for record in records for act in record["acts"]):
        acts[act["agent"]].append(act)
    return {
        "tasks": len({record["task"] for record in records}),
        "sessions": len(records),
        "failed": len(failed),
        "faults": dict(Counter(record["faults"][-1]["kind"] for record in failed)),
        "sources": sources,
        "agents": {agent: _of_acts(found, len(records)) for agent, found in acts.items()},
    }


def _of_acts(acts: Sequence[Fields], sessions: int) -> dict[str, float]:
    """Compute shares and means over the acts of an agent."""
    own = [act["reward"] for act in acts if act["reward"] is not None]
    calls = sum(act["tool_calls"] for act in acts)
    return {
        "acts_per_session": len(acts) / sessions,
        "malformed": fmean([act["malformed"] is not None for act in acts]),
        "truncated": fmean([act["truncated"] for act in acts]),
        "tokens_per_act": fmean([act["tokens"] for act in acts]),
        **({"own_reward": fmean(own)} if own else {}),
        **({"tool_errors": sum(act["tool_errors"] for act in acts) / calls} if calls else {}),
    }


def difference(first: Sequence[Fields], second: Sequence[Fields]) -> Table:
    """Subtract the results of the second team from those of the first, per source. Results of the same task are
    compared in pairs, and the interval is over tasks."""
    theirs, differences = _by_source(second), {}
    for source, mine in _by_source(first).items():
        pairs = [(values, theirs[source][task]) for task, values in mine.items()]
        sessions = min(len(values) for pair in pairs for values in pair)
        differences[source] = dict(with_interval(f"mean@{sessions}", [fmean(a) - fmean(b) for a, b in pairs]))
        for k in ks(sessions):
            differences[source] |= with_interval(f"pass@{k}", [_solved(a, k) - _solved(b, k) for a, b in pairs])
    return differences


def _solved(values: Sequence[float], k: int) -> float:
    return pass_at_k(len(values), sum(value >= SOLVED for value in values), k)


def _by_source(records: Sequence[Fields]) -> dict[str, dict[int, list[float]]]:
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        values[record["source"]][record["task"]].append(record["value"])
    return values
