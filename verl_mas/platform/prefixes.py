"""Rows that begin alike, computed once: a micro batch as the tree of its prefixes, in one sequence.

The rows of a group have one prompt, and those of an agent the beginning of one. In a causal model a token depends on
what is before it only, so a prefix of several rows has one set of activations, and one gradient: the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig

# Models of which the tests compare trees with rows. Another one may carry a state from token to token, or count its
# positions itself, and would be wrong without an error.
MODELS = ("llama", "mistral", "qwen2", "qwen3")


def fits(config: PretrainedConfig) -> bool:
    """Whether every layer attends to all that the mask shows, and to nothing else."""
    windows = {"full_attention", *(getattr(config, "layer_types", None) or ())} != {"full_attention"}
    return config.model_type in MODELS and not windows and not getattr(config, "sliding_window", None)


@dataclass(frozen=True)
class Tree:
    """A node is a token after a prefix. Of row r and its k-th reply token, `node` is the one that predicts it."""

    tokens: list[int]
    parents: list[int]  # -1: the first token of a row
    depths: list[int]
    nodes: list[int]  # of all reply tokens of all rows
    labels: list[int]
    places: list[int]  # where those predictions are among the tokens of all rows

    @staticmethod
    def of(rows: Sequence[Sequence[int]], prompts: Sequence[int]) -> Tree:
        """`prompts`: how many tokens of each row are its prompt, at least one."""
        tree, known, start = Tree([], [], [], [], [], []), dict[tuple[int, int], int](), 0
        for row, prompt in zip(rows, prompts, strict=True):
            node = -1
            for depth, token in enumerate(row[:-1]):
                parent, node = node, known.setdefault((node, token), len(tree.tokens))
                if node == len(tree.tokens):
                    tree.tokens.append(token)
                    tree.parents.append(parent)
                    tree.depths.append(depth)
                if depth >= prompt - 1:
                    tree.nodes.append(node)
                    tree.labels.append(row[depth + 1])
                    tree.places.append(start + depth)
            start += len(row)
        return tree

    @cached_property
    def predicting(self) -> list[int]:
        """The nodes whose logits are needed."""
        return sorted(set(self.nodes))

    @cached_property
    def mask(self) -> Tensor:
        """What each node attends to: itself, and the nodes before it."""
        seen = np.zeros((len(self.tokens),) * 2, dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = True
        return torch.from_numpy(seen)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probs of all reply tokens. `logits`: those of `predicting`."""
        return logits[self._rows, torch.tensor(self.labels)] - self.of_replies(torch.logsumexp(logits, dim=-1))

    def of_replies(self, values: Tensor) -> Tensor:
        """For all reply tokens, a value of each of `predicting`."""
        return values[self._rows]

    @cached_property
    def _rows(self) -> Tensor:
        number = {node: place for place, node in enumerate(self.predicting)}
        return torch.tensor([number[node] for node in self.nodes])
