"""Validation by whole sessions: the team's scores, and metrics per agent."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from verl.utils import tensordict_utils as tu

from verl_mas import data_plane
from verl_mas.config.schema import FaultSpec
from verl_mas.data_plane import Rows
from verl_mas.metrics import names as metric_names
from verl_mas.metrics.names import CORE
from verl_mas.rollout.counts import SessionCounts
from verl_mas.row import (
    DATA_SOURCE,
    EXTRA_FIELDS,
    GLOBAL_STEPS,
    GROUND_TRUTH,
    NUM_TURNS,
    PROMPTS,
    RAW_PROMPT,
    RESPONSES,
    REWARD_EXTRA_INFO,
    REWARD_MODEL,
    UID,
    VERDICTS,
    RowTags,
    session_key,
)
from verl_mas.trainer.metrics import agent_metrics
from verl_mas.trainer.pass_at_k import mean_of_sets, report
from verl_mas.trainer.step import Columns, in_order, read_columns, stack_columns
from verl_mas.verl_.types import Fields
from verl_mas.workflow.outcome import CheckedVerdict

if TYPE_CHECKING:
    # The agent-loop worker imports verl's trainers, and with them this module, while it is being imported itself.
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger, which has the handler in the trainer's process.
logger = logging.getLogger(f"verl.{__name__}")


@dataclass(frozen=True)
class ValidationHost:
    """What validation needs of the trainer."""

    step: int
    batches: Iterable[Fields]  # verl's validation data
    sessions_per_task: int
    dump_folder: str | None
    rollout: MasAgentLoopManager
    replay_buffer: ReplayBuffer
    read_text: Callable[[str, Tensor], str]  # from a policy's name and its tokens
    # verl's own: a table of samples, a file of them, and their averages per data source.
    log: Callable[..., None]
    dump: Callable[..., None]
    average: Callable[..., dict[str, float]]
    faults: FaultSpec
    sessions_at_once: int


@dataclass
class ScoredSession:
    """One finished session, with its acts in order."""

    uid: str
    number: int
    source: str
    truth: object
    turns: int
    score: float
    info: Fields
    verdicts: Mapping[str, Sequence[CheckedVerdict]] = field(default_factory=dict)
    acts: list[tuple[str, str, str]] = field(default_factory=list)  # agent, prompt, reply

    @property
    def value(self) -> float:
        """Accuracy where the scorer gives one, else the score."""
        accuracy = self.info.get("acc")
        return float(self.score if accuracy is None else accuracy)

    @property
    def prompt(self) -> str:
        return self.acts[0][1] if self.acts else ""

    @property
    def text(self) -> str:
        return "\n\n".join(f"[{agent}] {reply}" for agent, _, reply in self.acts)


class Validation:
    """One pass over the validation data, with verl's dataloader, queue and rollout."""

    def __init__(self, host: ValidationHost):
        self.host = host
        self.sessions: list[ScoredSession] = []
        self.expected: dict[tuple[str, str], int] = {}
        self.columns: list[Columns] = []
        self.counts = SessionCounts()

    def run(self) -> dict[str, float]:
        for number, batch in enumerate(self.host.batches):
            self._collect(self._roll_out(batch, number))
        self._count_sessions()
        self._show()
        return self._scores() | pass_rates(self.sessions, self.expected) | self._behaviour() | confusion(self.sessions)

    def _count_sessions(self) -> None:
        """A session that failed counts as 0; where too many failed or timed out, that is an error and not a score."""
        self.counts = self.host.rollout.pop_counts(validate=True)
        where = f"the validation at step {self.host.step}"
        self.counts.check_timeouts(self.host.faults, where, self.host.sessions_at_once)
        self.counts.check(self.host.faults.max_dropped_share, where)
        if self.counts.dropped:
            logger.warning("%s, and count as 0\n%s", self.counts.summary(where), self.counts.first_causes())

    def _roll_out(self, batch: Fields, number: int) -> Rows:
        host, size = self.host, len(batch[RAW_PROMPT])
        uids = [f"val{host.step}-{number}-{i}" for i in range(size)]
        batch[UID] = np.array(uids, dtype=object)
        sources = batch.get(DATA_SOURCE, ["unknown"] * size)
        counts = batch.get("__rollout_n__", [host.sessions_per_task] * size)
        for uid, source, n in zip(uids, sources, counts, strict=True):
            self.expected[str(source), uid] = int(n)
        prompts = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(prompts, GLOBAL_STEPS, host.step)
        tu.assign_non_tensor_data(prompts, "validate", True)
        data_plane.announce(uids, data_plane.VALIDATION, host.step)
        host.rollout.generate_sequences(prompts)
        rows: Rows
        rows, _ = host.replay_buffer.sample(global_steps=host.step, partition_id=data_plane.VALIDATION, batch_size=size)
        return rows

    def _collect(self, rows: Rows) -> None:
        if not len(rows):
            return
        rows = in_order(rows)
        columns = read_columns(rows)
        self.columns.append(columns)
        self.sessions += list(self._sessions(rows, columns))
        data_plane.clear(rows)

    def _sessions(self, rows: Rows, columns: Columns) -> Iterator[ScoredSession]:
        wanted = [PROMPTS, RESPONSES, NUM_TURNS, REWARD_MODEL, DATA_SOURCE, EXTRA_FIELDS]
        data = data_plane.read(rows, wanted)
        columns_there = set(data.keys())
        listed: dict[str, list[Any]] = {
            name: list(data[name]) if name in columns_there else [None] * len(rows) for name in wanted
        }
        by_session: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i, key in enumerate(columns.keys):
            by_session[key.uid, key.session].append(i)
        for (uid, number), acts in by_session.items():
            last = acts[-1]
            extra = plain(listed[EXTRA_FIELDS][last]) or {}
            info = dict(extra.get(REWARD_EXTRA_INFO) or {})
            yield ScoredSession(
                uid=uid,
                number=number,
                source=str(plain(listed[DATA_SOURCE][last]) or "unknown"),
                truth=(plain(listed[REWARD_MODEL][last]) or {}).get(GROUND_TRUTH),
                turns=int(plain(listed[NUM_TURNS][last]) or 0),
                score=float(columns.tags[last].team_reward),
                verdicts=info.pop(VERDICTS, {}),
                info=info,
                acts=[self._act(columns.tags[i], listed[PROMPTS][i], listed[RESPONSES][i]) for i in acts],
            )

    def _act(self, tags: RowTags, prompt: Tensor, reply: Tensor) -> tuple[str, str, str]:
        return tags.agent, self.host.read_text(tags.policy, prompt), self.host.read_text(tags.policy, reply)

    # -- what is logged -------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Whole sessions, not last acts, in verl's tables and files."""
        scores = [session.value for session in self.sessions]
        inputs, outputs = [x.prompt for x in self.sessions], [x.text for x in self.sessions]
        self.host.log(inputs=inputs, outputs=outputs, scores=scores)
        if self.host.dump_folder:
            self.host.dump(
                inputs=inputs,
                outputs=outputs,
                gts=[x.truth for x in self.sessions],
                scores=scores,
                reward_extra_infos_dict=reported(self.sessions)
                | {UID: [session_key(x.uid, x.number) for x in self.sessions]},
                dump_path=self.host.dump_folder,
            )

    def _scores(self) -> dict[str, float]:
        return self.host.average(
            [session.source for session in self.sessions],
            [session.uid for session in self.sessions],
            reported(self.sessions),
            [session.turns for session in self.sessions],
            expected_acc_counts=self.expected,
        )

    def _behaviour(self) -> dict[str, float]:
        if not self.columns:
            return {}
        # verl averages what sessions reported per data source.
        counts = replace(self.counts, infos={})
        return metric_names.of_validation(agent_metrics(stack_columns(self.columns)) | counts.metrics())


def reported(sessions: Sequence[ScoredSession]) -> dict[str, list[object]]:
    """What verl averages: the score, and every number or text that a scorer or workflow reported."""
    names = dict.fromkeys(name for session in sessions for name in session.info)
    infos: dict[str, list[object]] = {name: [session.info.get(name) for session in sessions] for name in names}
    plain_ones = {name: values for name, values in infos.items() if all(map(_is_plain, values))}
    return {"reward": [session.score for session in sessions], **plain_ones}


def pass_rates(sessions: Sequence[ScoredSession], expected: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """mean@k and pass@k per data source. `expected`: sessions per (source, uid); those that failed count as 0."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        values[session.source][session.uid].append(session.value)
    for (source, uid), count in expected.items():
        task = values[source][uid]
        task += [0.0] * (count - len(task))
    of_sets = {source: dict(report(list(tasks.values()))) for source, tasks in values.items()}
    overall = mean_of_sets(list(of_sets.values()))
    # verl has the mean accuracy of a source, with 0 for a session that failed, but no such mean of rewards.
    for source in {session.source for session in sessions if session.info.get("acc") is not None}:
        of_sets[source] = {name: value for name, value in of_sets[source].items() if not name.startswith("mean@")}
    of_sets["mean_of_sets"] = overall
    return {f"{CORE}{source}/{name}": value for source, found in of_sets.items() for name, value in found.items()}


def confusion(sessions: Sequence[ScoredSession]) -> dict[str, float]:
    """How verdicts on proposals (`Outcome.verdicts`) compare with the truth."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for session in sessions:
        for agent, verdicts in session.verdicts.items():
            for verdict, right in verdicts:
                word = {True: "accepts", False: "rejects", None: "malformed"}[verdict]
                counts[agent][f"{word}_right" if right else f"{word}_wrong"] += 1
    shares = {
        metric_names.agent(agent, f"verdict/{kind}"): count / of_agent.total()
        for agent, of_agent in counts.items()
        for kind, count in of_agent.items()
    }
    return metric_names.of_validation(shares)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | np.number)


def plain(value: Any) -> Any:
    """TransferQueue returns values wrapped or not."""
    return getattr(value, "data", value) if not hasattr(value, "numel") else value.item()
