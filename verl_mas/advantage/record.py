"""The input and output of an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from verl_mas.advantage.kernel import GroupStats, Partition, compact
from verl_mas.errors import DataError

if TYPE_CHECKING:
    from verl_mas.advantage.state import RunningScores

# A name or a number.
Label: TypeAlias = Any
Labels: TypeAlias = "Sequence[Label] | np.ndarray | Tensor"


class Codes(NamedTuple):
    """A column as whole numbers [N], and the label that each number stands for."""

    ids: Tensor
    names: Sequence[Label]


@dataclass(frozen=True, eq=False)
class AdvantageInput:
    """What an estimator is given: all rows of a step. Labels are lists, arrays or integer tensors of length N."""

    scores: Tensor  # [N], the row's own score: all its parts together
    task: Labels
    session: Labels  # distinct within a task
    agent: Labels
    role: Labels | None = None
    source: Labels | None = None  # the task's data source
    instance: Labels | None = None  # number of the spawned agent or conversation, else 0
    turn: Labels | None = None  # 0-based index of the acts of the agent's instance
    branch: Labels | None = None  # 0..K-1 where K replies were sampled from one prompt, else 0
    observation: Labels | None = None  # what the agent saw; rows with equal keys are compared by agent_gigpo
    prompt: Labels | None = None  # any key of the prompt's tokens, such as their hash
    tokens: Tensor | None = None  # [N], how many of the row's tokens are trained: its response mask, summed
    padding: Tensor | None = None  # [N] bool: takes no part, gets advantage 0
    agents: Sequence[str] | None = None  # the names that `agent` may hold; None: any
    running: RunningScores | None = None  # of earlier steps, for an estimator that reads them
    _codes: dict[str, Codes] = field(default_factory=dict, init=False, repr=False)
    _partitions: dict[tuple[str, ...], Partition] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or not self.scores.is_floating_point():
            raise DataError(
                f"scores are {self.scores.dtype} of shape {tuple(self.scores.shape)}",
                rule="there is one real score per row",
                fix="sum token rewards over the last dimension first",
            )
        for name in (*COLUMNS, "tokens", "padding"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self):
                raise DataError(
                    f"{name} has {len(column)} rows, scores has {len(self)}",
                    rule="every column has one value per row",
                    fix=f"give {name} for the same rows as scores",
                )
        if self.padding is not None and self.padding.dtype != torch.bool:
            raise DataError(
                f"padding is {self.padding.dtype}",
                rule="padding is a bool per row",
                fix="use padding.bool()",
            )

    def __len__(self) -> int:
        return self.scores.shape[0]

    def select(self, rows: Tensor) -> AdvantageInput:
        """The same record for some of its rows."""
        taken = {name: _take(getattr(self, name), rows) for name in ("scores", *COLUMNS, "tokens", "padding")}
        return replace(self, **taken)  # type: ignore[arg-type]

    def codes(self, column: str) -> Codes:
        """A label column as whole numbers; a missing label is an error that names the row."""
        if column not in self._codes:
            self._codes[column] = self._encode(column)
        return self._codes[column]

    def numbers(self, column: str) -> Tensor:
        """A column of whole numbers [N]."""
        ids, names = self.codes(column)
        return torch.tensor(names, dtype=torch.long, device=ids.device)[ids]

    def partition(self, *columns: str) -> Partition:
        """The rows parted by equal values in all of the columns."""
        if columns not in self._partitions:
            self._partitions[columns] = self._part(columns)
        return self._partitions[columns]

    def by_role(self) -> AdvantageInput:
        """The same record with roles in place of agents: the agents of a role are instances of it."""
        if self.role is None:
            raise DataError(
                "the rows have no role",
                rule="mas.advantage.by=role compares the agents of a role with each other",
                fix="fill AdvantageInput.role (the trainer of +mas=<team> does), or set mas.advantage.by=agent",
            )
        one = ("agent",) if self.instance is None else ("agent", "instance")
        return replace(self, agent=self.role, instance=self.partition(*one).ids, agents=None)

    def describe(self, row: int, *columns: str) -> str:
        """A row's group in words: `task 'x', agent 'solver'`."""
        return ", ".join(f"{column} {self._label(column, row)!r}" for column in columns)

    def _part(self, columns: tuple[str, ...]) -> Partition:
        key = torch.zeros(len(self), dtype=torch.long, device=self.scores.device)
        span = 1
        for column in columns:
            ids, names = self.codes(column)
            if span * max(1, len(names)) >= 2**63:
                smaller = compact(key)
                key, span = smaller.ids, smaller.count
            key, span = key * len(names) + ids, span * max(1, len(names))
        return compact(key, span)

    def _label(self, column: str, row: int) -> Label:
        ids, names = self.codes(column)
        return names[int(ids[row])]

    def _encode(self, column: str) -> Codes:
        labels = getattr(self, column)
        if labels is None:
            raise DataError(
                f"the rows have no {column}",
                rule=f"this estimator compares rows by {column}",
                fix=f"fill AdvantageInput.{column} (the trainer of +mas=<team> does), or choose another estimator",
            )
        if isinstance(labels, Tensor):
            labels = labels.cpu().numpy()
        if not isinstance(labels, np.ndarray):  # as objects: numpy would turn a missing text label into "nan"
            labels = pd.Series(labels, dtype=object).to_numpy()
        found, unique = pd.factorize(labels)
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise DataError(
                f"row {row} has no {column}",
                rule=f"every row names its {column}",
                fix="tag the row where it is made, or mark it as padding",
            )
        return Codes(torch.from_numpy(found).to(self.scores.device), unique.tolist())


COLUMNS = tuple(f.name for f in fields(AdvantageInput) if "Labels" in str(f.type))


@dataclass(frozen=True, eq=False)
class AdvantageOutput:
    """What an estimator returns: advantages [N], the groups they come from, and what to log.

    `compute_advantages` returns them as float32, and 0 on padding.
    """

    advantages: Tensor
    groups: Partition
    stats: GroupStats
    metrics: dict[str, float] = field(default_factory=dict)


def _take(column: Labels | None, rows: Tensor) -> Labels | None:
    if column is None:
        return None
    if isinstance(column, Tensor):
        return column[rows.to(column.device)]
    chosen = rows.cpu().numpy()
    return column[chosen] if isinstance(column, np.ndarray) else [column[row] for row in chosen]
