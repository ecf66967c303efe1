"""What happens to the rows of one training step, from the replay buffer to the optimisers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from verl_mas import row as fields
from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute, to_tokens
from verl_mas.trainer import batching as r

logger = logging.getLogger(__name__)


@dataclass
class Columns:
    """What the driver reads of the rows, in the order of the batch."""

    scores: Tensor  # [N]
    masks: Sequence[Tensor]  # N times [T]
    parts: Mapping[str, Tensor]  # team, local and penalty [N]
    observation: Tensor  # [N], equal for rows with the same prompt

    @property
    def tokens(self) -> Tensor:
        return torch.stack([mask.sum() for mask in self.masks])


@dataclass
class PolicyRows:
    """One policy's rows of a step on their way through verl."""

    batch: KVBatchMeta
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def real(self) -> int:
        return sum(not r.is_padding(tag) for tag in self.batch.tags)


REWARD_PARTS = {"team": fields.TEAM_REWARD, "local": fields.LOCAL_REWARD, "penalty": fields.PENALTY}


def in_order(batch: KVBatchMeta) -> KVBatchMeta:
    """Rows by task, session and act: sessions end in any order, and sums of floats should not depend on it."""

    def place(i: int) -> tuple[int, int, str, int, int]:
        uid, session, index = split_key(batch.keys[i])
        return batch.tags[i].get("global_steps", 0), len(uid), uid, session, index

    batch.reorder(sorted(range(len(batch)), key=place))
    return batch


def split_key(key: str) -> tuple[str, int, int]:
    """A row's task, session and number in the session."""
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)


def read(batch: KVBatchMeta) -> Columns:
    wanted = [fields.RESPONSE_MASK, fields.SCORES]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
    masks, scores = data[fields.RESPONSE_MASK].unbind(), data[fields.SCORES].unbind()
    return Columns(
        scores=torch.stack([score.sum() for score in scores]).float(),
        masks=masks,
        parts={
            name: torch.tensor([tag[key] for tag in batch.tags], dtype=torch.float32)
            for name, key in REWARD_PARTS.items()
        },
        observation=torch.tensor([tag[fields.OBSERVATION] for tag in batch.tags]),
    )


def stack(columns: Sequence[Columns]) -> Columns:
    """The same columns of several batches, one after the other."""
    return Columns(
        scores=torch.cat([c.scores for c in columns]),
        masks=[mask for c in columns for mask in c.masks],
        parts={name: torch.cat([c.parts[name] for c in columns]) for name in REWARD_PARTS},
        observation=torch.cat([c.observation for c in columns]),
    )


def advantages(
    batch: KVBatchMeta, columns: Columns, estimator: str, options: AdvantageOptions, team: Sequence[str]
) -> tuple[Tensor, dict[str, float]]:
    """Of every row of the step, whatever its policy, so that groups may span policies."""
    keys = [split_key(key) for key in batch.keys]
    tags = batch.tags
    output = compute(
        estimator,
        AdvantageInput(
            scores=columns.scores,
            task=[uid for uid, _, _ in keys],
            session=[session for _, session, _ in keys],
            agent=[tag[fields.AGENT] for tag in tags],
            turn=[tag[fields.TURN] for tag in tags],
            branch=[tag[fields.BRANCH] for tag in tags],
            observation=columns.observation,
            prompt=columns.observation,
            tokens=columns.tokens,
            agents=team,
        ),
        options,
    )
    return output.advantages, output.metrics


def write_advantages(batch: KVBatchMeta, columns: Columns, per_row: Tensor, parts: Mapping[str, PolicyRows]) -> None:
    """Gives every row its advantages; padding gets zeros. Rows that no policy trains get theirs for the metrics."""
    number = {key: i for i, key in enumerate(batch.keys)}
    placed: set[str] = set()
    for part in parts.values():
        at = [number.get(key) for key in part.batch.keys]
        part.advantages = torch.stack([per_row[i] if i is not None else per_row.new_zeros(()) for i in at])
        masks = [columns.masks[i] if i is not None else NOTHING for i in at]
        part.batch = put(part.batch, nested(part.advantages, masks))
        placed.update(part.batch.keys)
    rest = [i for i, key in enumerate(batch.keys) if key not in placed]
    if rest:
        put(r.select(batch, rest), nested(per_row[rest], [columns.masks[i] for i in rest]))


NOTHING = torch.zeros(1, dtype=torch.int64)


def nested(per_row: Tensor, masks: Sequence[Tensor]) -> dict[str, Tensor]:
    tokens = to_tokens(per_row, torch.nested.as_nested_tensor(list(masks), layout=torch.jagged))
    return {fields.ADVANTAGES: tokens, fields.RETURNS: tokens}


def put(rows: KVBatchMeta, new: dict[str, Tensor]) -> KVBatchMeta:
    """Writes fields of these rows. Only the returned batch knows that the rows have them."""
    extra_info, tags = rows.extra_info, rows.tags
    rows = tq.kv_batch_put(keys=rows.keys, partition_id=rows.partition_id, fields=TensorDict(new, batch_size=len(rows)))
    rows.extra_info, rows.tags = extra_info, tags
    return rows


def without_zero_advantage(part: PolicyRows, updates: int, multiple: int) -> list[int]:
    """The rows to keep: those with an advantage, filled up to a multiple with rows that add nothing to the loss.

    Padding fills first, it is short; but each optimiser step needs a real row.
    """
    padding = [i for i, tag in enumerate(part.batch.tags) if r.is_padding(tag)]
    zero = [i for i, tag in enumerate(part.batch.tags) if not r.is_padding(tag) and float(part.advantages[i]) == 0.0]
    idle = set(padding) | set(zero)
    kept = [i for i in range(len(part.batch)) if i not in idle]
    must = max(0, updates - len(kept))
    filler = zero[:must] + padding + zero[must:]
    room = -(len(kept) + must) % multiple + must
    return sorted(kept + filler[:room])


def scale_for_skipped(part: PolicyRows, kept: Sequence[int], columns: Mapping[str, int], mode: str) -> float:
    """What kept advantages are multiplied by, so that a mean over tokens stays a mean over all of the tokens."""
    if mode != "token-mean":
        return 1.0
    total = sum(columns.get(key, 0) for key in part.batch.keys)
    return sum(columns.get(part.batch.keys[i], 0) for i in kept) / max(total, 1)
