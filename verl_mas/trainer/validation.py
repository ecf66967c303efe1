"""Validation with whole sessions: scores of the team, and metrics per agent."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.random import fork_rng
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from verl_mas.config.placement import sessions_at_once
from verl_mas.config.run import Run
from verl_mas.rollout.counts import SessionCounts
from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.run_folder.metrics.names import CORE
from verl_mas.trainer.metrics import agent_metrics, result_of
from verl_mas.trainer.pass_at_k import mean_of_sets, report
from verl_mas.trainer.step import COLUMNS, PolicyRows, in_order, read_columns
from verl_mas.trainer.timeline import VALIDATE, Timeline
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey, RowTags, session_key
from verl_mas.verl_.types import Fields
from verl_mas.workflow.reply import CheckedVerdict

if TYPE_CHECKING:
    # Importing this at run time would be circular: the agent-loop worker's module imports verl's trainers, which import
    # this module.
    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")
# Fields of a session, which are read from its last row.
OF_SESSION = (row.NUM_TURNS, row.REWARD_MODEL, row.DATA_SOURCE, row.EXTRA_FIELDS)


@dataclass
class ScoredSession:
    """One finished session."""

    uid: str
    number: int
    source: str
    truth: object
    turns: int
    score: float
    info: Fields
    verdicts: Mapping[str, Sequence[CheckedVerdict]] = field(default_factory=dict)
    prompt: str = ""  # of the first act
    text: str = ""  # all replies, in order

    @property
    def value(self) -> float:
        """The accuracy if the scorer gives one, else the score."""
        accuracy = self.info.get("acc")
        return float(self.score if accuracy is None else accuracy)


class SessionValidation(PPOTrainer):
    """A trainer that validates whole sessions, with verl's dataloader, queue and rollout."""

    run: Run
    timeline: Timeline
    agent_loop_manager: MasAgentLoopManager

    def read_text(self, policy: str, ids: Tensor) -> str:
        """Decode a policy's tokens."""
        raise NotImplementedError

    def _validate(self) -> dict[str, float]:
        sessions: list[ScoredSession] = []
        parts: list[PolicyRows] = []
        expected: dict[tuple[str, str], int] = {}
        # The data loader samples the order of tasks with random numbers. Restore the random state afterwards, so that a
        # validation does not affect training.
        with self.timeline.span(VALIDATE), fork_rng(devices=[]):
            for number, batch in enumerate(self.val_dataloader):
                rows = self._roll_out(batch, number, expected)
                if len(rows):
                    rows = in_order(rows)
                    parts.append(PolicyRows(rows, data_plane.read(rows, COLUMNS)))
                    sessions += self._scored(rows)
                    data_plane.clear(rows)
            # Exclude the values that sessions reported, because verl averages them per data source.
            counts = replace(self._counted(), infos={})
            self._show(sessions)
            averages: dict[str, float] = self._val_metrics_update(
                [session.source for session in sessions],
                [session.uid for session in sessions],
                reported(sessions),
                [session.turns for session in sessions],
                expected_acc_counts=expected,
            )
            metrics = averages | pass_rates(sessions, expected) | confusion(sessions)
            if parts:
                columns = read_columns(data_plane.join([part.batch for part in parts]), parts)
                metrics |= metric_names.of_validation(agent_metrics(columns) | counts.metrics())
            logger.info("step %d | validation%s", self.global_steps, result_of(metrics))
            return metrics

    def _counted(self) -> SessionCounts:
        """Return the counts of sessions. A failed session scores 0. Raises if too many sessions failed or timed out."""
        counts, faults = self.agent_loop_manager.pop_counts(validate=True), self.run.mas.faults
        where = f"the validation at step {self.global_steps}"
        counts.check_timeouts(faults, where, sessions_at_once(self.run))
        counts.check(faults.max_dropped_share, where)
        if counts.dropped:
            logger.warning("%s, and count as 0\n%s", counts.summary(where), counts.first_causes())
        return counts

    def _roll_out(self, batch: Fields, number: int, expected: dict[tuple[str, str], int]) -> Rows:
        step, size = self.global_steps, len(batch[row.RAW_PROMPT])
        uids = [f"val{step}-{number}-{i}" for i in range(size)]
        batch[row.UID] = np.array(uids, dtype=object)
        sources = batch.get(row.DATA_SOURCE, ["unknown"] * size)
        counts = batch.get("__rollout_n__", [self.config.actor_rollout_ref.rollout.val_kwargs.n] * size)
        for uid, source, n in zip(uids, sources, counts, strict=True):
            expected[str(source), uid] = int(n)
        prompts = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(prompts, row.GLOBAL_STEPS, step)
        tu.assign_non_tensor_data(prompts, "validate", True)
        data_plane.announce(uids, data_plane.VALIDATION, step)
        self.agent_loop_manager.generate_sequences(prompts)
        rows: Rows
        rows, _ = self.replay_buffer.sample(global_steps=step, partition_id=data_plane.VALIDATION, batch_size=size)
        return rows

    def _scored(self, rows: Rows) -> Iterator[ScoredSession]:
        data = data_plane.read(rows, [row.PROMPTS, row.RESPONSES, *OF_SESSION])
        columns = {name: list(data[name]) for name in set(data.keys())}
        prompts, replies, tags = columns[row.PROMPTS], columns[row.RESPONSES], list(map(RowTags.of, rows.tags))
        by_session = defaultdict(list)
        for i, key in enumerate(map(RowKey.parse, rows.keys)):
            by_session[key.uid, key.session].append(i)
        for (uid, number), acts in by_session.items():
            values = {name: unwrap(columns[name][acts[-1]]) for name in OF_SESSION if name in columns}
            info = dict((values.get(row.EXTRA_FIELDS) or {}).get(row.REWARD_EXTRA_INFO) or {})
            yield ScoredSession(
                uid=uid,
                number=number,
                source=str(values.get(row.DATA_SOURCE) or "unknown"),
                truth=(values.get(row.REWARD_MODEL) or {}).get(row.GROUND_TRUTH),
                turns=int(values.get(row.NUM_TURNS) or 0),
                score=float(tags[acts[-1]].team_reward),
                verdicts=info.pop(row.VERDICTS, {}),
                info=info,
                prompt=self.read_text(tags[acts[0]].policy, prompts[acts[0]]),
                text="\n\n".join(f"[{tags[i].agent}] {self.read_text(tags[i].policy, replies[i])}" for i in acts),
            )

    def _show(self, sessions: Sequence[ScoredSession]) -> None:
        """Write sessions to verl's tables and files, with all acts instead of the last one."""
        scores = [session.value for session in sessions]
        prompts, texts = [session.prompt for session in sessions], [session.text for session in sessions]
        table = {"inputs": prompts, "outputs": texts, "scores": scores}
        self._maybe_log_val_generations(**table)
        if folder := self.config.trainer.get("validation_data_dir", None):
            infos = reported(sessions) | {row.UID: [session_key(x.uid, x.number) for x in sessions]}
            truths = [session.truth for session in sessions]
            self._dump_generations(**table, gts=truths, reward_extra_infos_dict=infos, dump_path=folder)


def reported(sessions: Sequence[ScoredSession]) -> dict[str, list[Any]]:
    """Return the values that verl averages: scores, and each number or string that a scorer or workflow reported."""
    names = dict.fromkeys(name for session in sessions for name in session.info)
    infos: dict[str, list[Any]] = {name: [session.info.get(name) for session in sessions] for name in names}
    plain_types = bool | int | float | str | np.number | None
    averaged = {name: values for name, values in infos.items() if all(isinstance(each, plain_types) for each in values)}
    return {"reward": [session.score for session in sessions], **averaged}


def pass_rates(sessions: Sequence[ScoredSession], expected: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Compute mean@k and pass@k per data source. Failed sessions count as 0.

    `expected`: (source, uid) -> number of sessions.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        values[session.source][session.uid].append(session.value)
    for (source, uid), count in expected.items():
        task = values[source][uid]
        task += [0.0] * (count - len(task))
    of_sets = {source: dict(report(list(tasks.values()))) for source, tasks in values.items()}
    overall = mean_of_sets(of_sets)
    # If sessions have an accuracy, verl already reports its mean, with 0 for failed sessions, so remove our mean. For
    # rewards, keep our mean, because verl's mean excludes failed sessions.
    for source in {session.source for session in sessions if session.info.get("acc") is not None}:
        of_sets[source] = {name: value for name, value in of_sets[source].items() if not name.startswith("mean@")}
    of_sets["mean_of_sets"] = overall
    return {f"{CORE}{source}/{name}": value for source, found in of_sets.items() for name, value in found.items()}


def confusion(sessions: Sequence[ScoredSession]) -> dict[str, float]:
    """Compute how verdicts on proposals (`Outcome.verdicts`) compare with the ground truth."""
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


def unwrap(value: Any) -> Any:
    """Unwrap a value from TransferQueue, which wraps some values."""
    return getattr(value, "data", value) if not hasattr(value, "numel") else value.item()
