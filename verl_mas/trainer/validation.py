"""How good the team is, by whole sessions, and how each agent behaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from verl_mas import row as fields
from verl_mas.trainer import batching as r
from verl_mas.trainer import metrics as m
from verl_mas.trainer import step as s
from verl_mas.trainer.pass_at_k import mean_of_sets, report

if TYPE_CHECKING:
    from verl_mas.trainer.trainer import MasTrainer

PARTITION = "val"


@dataclass
class Session:
    """One finished session, with its acts in order."""

    uid: str
    number: int
    source: str
    truth: Any
    turns: int
    score: float
    info: Mapping[str, Any]
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

    def __init__(self, trainer: MasTrainer):
        self.trainer = trainer
        self.sessions: list[Session] = []
        self.expected: dict[tuple[str, str], int] = {}
        self.behaviour: list[tuple[KVBatchMeta, s.Columns]] = []

    def run(self) -> dict[str, float]:
        for number, batch in enumerate(self.trainer.val_dataloader):
            self._collect(self._roll_out(batch, number))
        self._show()
        return self._scores() | self._passes() | self._ways() | confusion(self.sessions)

    def _roll_out(self, batch: dict[str, Any], number: int) -> KVBatchMeta:
        trainer, size = self.trainer, len(batch["raw_prompt"])
        batch[fields.UID] = np.array([f"val{trainer.global_steps}-{number}-{i}" for i in range(size)], dtype=object)
        sources = batch.get("data_source", ["unknown"] * size)
        count = trainer.config.actor_rollout_ref.rollout.val_kwargs.n
        counts = batch.get("__rollout_n__", [count] * size)
        for uid, source, n in zip(batch[fields.UID], sources, counts, strict=True):
            self.expected[str(source), str(uid)] = int(n)
        prompts = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(prompts, "global_steps", trainer.global_steps)
        tu.assign_non_tensor_data(prompts, "validate", True)
        tag = {"is_prompt": True, "status": "pending", "global_steps": trainer.global_steps}
        tq.kv_batch_put(keys=list(batch[fields.UID]), partition_id=PARTITION, tags=[dict(tag) for _ in range(size)])
        trainer.agent_loop_manager.generate_sequences(prompts)
        rows, _ = trainer.replay_buffer.sample(
            global_steps=trainer.global_steps, partition_id=PARTITION, batch_size=size
        )
        return rows

    def _collect(self, rows: KVBatchMeta) -> None:
        if not len(rows):
            return
        rows = s.in_order(rows)
        columns = s.read(rows)
        self.behaviour.append((rows, columns))
        self.sessions += list(self._sessions(rows, columns))
        tq.kv_clear(keys=rows.keys, partition_id=rows.partition_id)

    def _sessions(self, rows: KVBatchMeta, columns: s.Columns) -> Iterator[Session]:
        wanted = ["prompts", "responses", "num_turns", "reward_model", "data_source", "extra_fields"]
        data = tq.kv_batch_get(keys=rows.keys, partition_id=rows.partition_id, select_fields=wanted)
        columns_there = set(data.keys())
        listed = {name: list(data[name]) if name in columns_there else [None] * len(rows) for name in wanted}
        by_session: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i, key in enumerate(rows.keys):
            uid, session, _ = s.split_key(key)
            by_session[uid, session].append(i)
        for (uid, number), acts in by_session.items():
            last = acts[-1]
            extra = plain(listed["extra_fields"][last]) or {}
            yield Session(
                uid=uid,
                number=number,
                source=str(plain(listed["data_source"][last]) or "unknown"),
                truth=(plain(listed["reward_model"][last]) or {}).get("ground_truth"),
                turns=int(plain(listed["num_turns"][last]) or 0),
                score=float(columns.parts["team"][last]),
                info=extra.get("reward_extra_info") or {},
                acts=[self._act(rows.tags[i], listed["prompts"][i], listed["responses"][i]) for i in acts],
            )

    def _act(self, tag: Mapping[str, Any], prompt: Any, reply: Any) -> tuple[str, str, str]:
        return tag[fields.AGENT], self.trainer.read_text(tag, prompt), self.trainer.read_text(tag, reply)

    # -- what is logged -------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Whole sessions, not last acts, in verl's tables and files."""
        trainer = self.trainer
        scores = [session.value for session in self.sessions]
        inputs, outputs = [x.prompt for x in self.sessions], [x.text for x in self.sessions]
        trainer._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=scores)
        folder = trainer.config.trainer.get("validation_data_dir", None)
        if folder:
            trainer._dump_generations(
                inputs=inputs,
                outputs=outputs,
                gts=[x.truth for x in self.sessions],
                scores=scores,
                reward_extra_infos_dict=self._infos() | {"uid": [f"{x.uid}_{x.number}" for x in self.sessions]},
                dump_path=folder,
            )

    def _infos(self) -> dict[str, list[Any]]:
        """What verl averages: the score, and every number or text that a scorer or workflow reported."""
        names = dict.fromkeys(name for session in self.sessions for name in session.info)
        infos = {name: [session.info.get(name) for session in self.sessions] for name in names}
        plain_ones = {name: values for name, values in infos.items() if all(map(_is_plain, values))}
        return {"reward": [session.score for session in self.sessions], **plain_ones}

    def _scores(self) -> dict[str, float]:
        return self.trainer._val_metrics_update(
            [session.source for session in self.sessions],
            [session.uid for session in self.sessions],
            self._infos(),
            [session.turns for session in self.sessions],
            expected_acc_counts=self.expected,
        )

    def _passes(self) -> dict[str, float]:
        """A session that failed is worth nothing; one solved its task if its accuracy or score is at least 1."""
        values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for session in self.sessions:
            values[session.source][session.uid].append(session.value)
        for (source, uid), count in self.expected.items():
            task = values[source][uid]
            task += [0.0] * (count - len(task))
        of_sets = {source: dict(report(list(tasks.values()))) for source, tasks in values.items()}
        of_sets["mean_of_sets"] = mean_of_sets(list(of_sets.values()))
        return {
            f"val-core/{source}/{name}": value for source, found in of_sets.items() for name, value in found.items()
        }

    def _ways(self) -> dict[str, float]:
        if not self.behaviour:
            return {}
        rows = r.join([rows for rows, _ in self.behaviour])
        columns = s.stack([columns for _, columns in self.behaviour])
        found = m.of_agents(rows, columns)
        found |= m.prefixed(self.trainer.agent_loop_manager.pop_metrics(validate=True))
        return {f"val-aux/{key}": value for key, value in found.items()}


def confusion(sessions: Sequence[Session]) -> dict[str, float]:
    """How verdicts on proposals compare with the truth.

    A workflow declares them in `Outcome.info["verdicts"]`: by agent, a pair for each verdict. What it said is True
    for "this is right", False for "it is wrong", None where it could not be read; what is true is True or False.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for session in sessions:
        for agent, verdicts in (session.info.get("verdicts") or {}).items():
            for said, right in verdicts:
                word = {True: "accepts", False: "rejects", None: "malformed"}[said]
                counts[agent][f"{word}_right" if right else f"{word}_wrong"] += 1
    return {
        f"val-aux/mas/{agent}/verdict/{kind}": count / of_agent.total()
        for agent, of_agent in counts.items()
        for kind, count in of_agent.items()
    }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | np.number)


def plain(value: Any) -> Any:
    """TransferQueue hands out what it was given, wrapped or not."""
    return getattr(value, "data", value) if not hasattr(value, "numel") else value.item()
