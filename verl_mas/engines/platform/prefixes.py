"""Computes shared prefixes of rows once. A micro batch becomes a prefix tree, laid out as one sequence.

The rows of a group share a prompt, and the rows of an agent share the beginning of their prompts. In a causal model a
token depends only on the tokens before it. So a prefix of several rows has one set of activations, and its gradient is
the sum of the gradients of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AutoConfig

from verl_mas.verl_.types import Passed

# Models for which tests check that trees give the same results as rows. Another model may carry a state from token to
# token, or count its positions itself, and would then compute wrong results without an error.
MODELS = ("llama", "mistral", "qwen2", "qwen3")


class Line(NamedTuple):
    """A row in a list of rows that is sorted by tokens. The last token of the row is left out, because no token after
    it is predicted."""

    row: int
    length: int
    shared: int  # number of first tokens that this row has in common with the row before it
    predicted: int = 0


def in_order(rows: Sequence[Tensor], replies: Sequence[Tensor]) -> list[Line]:
    """Sort rows so that rows with a common prefix are adjacent. `replies` has a mask over the last tokens of each row,
    which is true for predicted tokens."""
    arrays = [row[:-1].numpy() for row in rows]
    order = sorted(range(len(rows)), key=[array.astype(">i4").tobytes() for array in arrays].__getitem__)
    shared = [0, *(_common(arrays[one], arrays[other]) for one, other in pairwise(order))]
    counts = [int(mask.sum()) for mask in replies]
    return [Line(row, len(arrays[row]), common, counts[row]) for row, common in zip(order, shared, strict=True)]


def _common(one: np.ndarray, other: np.ndarray) -> int:
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


@dataclass(frozen=True)
class Tree:
    """A prefix tree of rows. Each node is a token after a prefix, and its subtree comes directly after it. So a node
    attends to each earlier node whose subtree has not ended yet."""

    tokens: Tensor
    depths: Tensor
    ends: Tensor  # the first node after the subtree of each node
    predicting: Tensor  # the nodes that predict the tokens of all replies, row by row
    predicted: Tensor  # the indices of the predicted tokens among the tokens of all rows
    counts: Tensor  # the number of predicted tokens of each row

    @staticmethod
    def of(rows: Sequence[Tensor], replies: Sequence[Tensor]) -> Tree:
        """Build the tree. `replies` has a mask over the last tokens of each row, which is true for predicted tokens.
        Each predicted token must have a token before it."""
        rows = [row.cpu() for row in rows]
        lines = in_order(rows, replies)
        starts = [0, *accumulate(len(row) for row in rows)]
        tokens, depths, ends = [], [], np.zeros(starts[-1], dtype=np.int64)
        paths: dict[int, np.ndarray] = {}
        path, count = np.zeros(0, dtype=np.int64), 0
        for row, length, common, _ in lines:
            ends[path[common:]] = count
            new = np.arange(count, count + length - common)
            path = paths[row] = np.concatenate([path[:common], new])
            tokens.append(rows[row][common:-1])
            depths.append(torch.arange(common, len(path)))
            count += len(new)
        ends[path] = count
        targets = [len(row) - len(mask) + mask.cpu().nonzero()[:, 0] for row, mask in zip(rows, replies, strict=True)]
        return Tree(
            torch.cat(tokens),
            torch.cat(depths),
            torch.from_numpy(ends[:count]),
            torch.cat([torch.from_numpy(paths[row])[target - 1] for row, target in enumerate(targets)]),
            torch.cat([target + start for target, start in zip(targets, starts[:-1], strict=True)]),
            torch.tensor([len(target) for target in targets]),
        )

    def mask(self, device: torch.device) -> Tensor:
        """The attention mask: each node attends to itself and to its ancestors in the tree."""
        nodes, ends = torch.arange(len(self.tokens), device=device), self.ends.to(device)
        return (nodes <= nodes[:, None]) & (nodes[:, None] < ends)

    def blocks(self, device: torch.device) -> BlockMask:
        """The same mask as `mask`, as FlexAttention takes it. FlexAttention skips blocks to which no node attends."""
        ends, size = self.ends.to(device), len(self.tokens)

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        return create_block_mask(seen, None, None, size, size, device=str(device))


@dataclass(frozen=True)
class Work:
    """The cost of a forward pass in multiplications. There is a cost per token, per token whose logits are computed,
    and per pair of tokens in attention. `start` is the fixed cost of a micro batch in the same unit."""

    token: float
    logits: float
    pair: float
    start: float

    def of(self, tokens: float, predicted: float, pairs: float) -> float:
        return self.start + tokens * self.token + predicted * self.logits + pairs * self.pair


def cut(rows: Sequence[Line], most: int, work: Work) -> list[list[int]]:
    """Cut rows into micro batches. Unless a micro batch is a single row, it computes at most `most` tokens and predicts
    at most `most` tokens.

    A row joins the previous micro batch if this adds at most as much work as a new micro batch for the row would take.
    Joining can be more work, because attention is computed for all pairs of tokens of a micro batch.
    """
    batches: list[list[int]] = []
    tokens = predicted = 0
    for number, row in enumerate(rows):
        joined, predictions = tokens + row.length - row.shared, predicted + row.predicted
        more, alone = (work.of(size, 0, size * size) for size in (joined, row.length))
        fits = max(joined, predictions) <= most
        if batches and fits and more - work.of(tokens, 0, tokens * tokens) <= alone:
            batches[-1].append(number)
            tokens, predicted = joined, predictions
        else:
            batches.append([number])
            tokens, predicted = row.length, row.predicted
    return batches


def divided(batches: Sequence[list[int]], count: int) -> list[list[int]]:
    """Split micro batches until there are `count`, because every worker needs the same number of micro batches."""
    parts = list(batches)
    while len(parts) < count:
        longest = max(range(len(parts)), key=lambda part: len(parts[part]))
        rows = parts[longest]
        assert len(rows) > 1, f"{len(parts)} rows cannot be {count} micro batches"
        parts[longest : longest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return parts


def size_of(batch: Sequence[int], rows: Sequence[Line]) -> int:
    """The number of tokens that a micro batch of consecutive rows computes."""
    return rows[batch[0]].length + sum(rows[row].length - rows[row].shared for row in batch[1:])


def not_covered(model: Mapping[str, Passed], *, fused: bool, ulysses: int) -> str | None:
    """Return the reason why a policy's rows cannot be computed as trees; None if they can. `model`: the config.json of
    the policy's model. `fused`: whether verl's kernels compute log-probs without logits."""
    kind = model.get("model_type")
    if kind not in MODELS:
        return f"trees are compared with rows for {', '.join(MODELS)}, and not for {kind}"
    config = AutoConfig.for_model(**model)
    windows = {"full_attention", *(getattr(config, "layer_types", None) or ())} != {"full_attention"}
    if windows or getattr(config, "sliding_window", None):
        return "a layer with a sliding window sees less than the text before a token"
    if fused:
        return "use_fused_kernels=True computes the log-probs of whole rows"
    return "ulysses_sequence_parallel_size above 1 divides a sequence among GPUs" if ulysses > 1 else None
