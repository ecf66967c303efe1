"""Boards by puzzle name and seed, and the dataset rows that name a board."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.puzzles.base import PUZZLES, Puzzle
from verl_mas.registry import nearest

PUZZLE, SEED, SPLIT, SIZE = "puzzle", "seed", "split", "size"
# Arguments of a puzzle's `generate`, by name.
Size: TypeAlias = Mapping[str, object]


def board(name: str, seed: int, split: str, size: Size) -> Puzzle:
    """The puzzle `name` as its seed makes it; `size` holds the arguments of its `generate`."""
    kind = PUZZLES[name]
    known = list(_defaults(kind))
    for key in size:
        if key not in known:
            raise ConfigError(
                f"{name} {key}={size[key]}",
                rule=f"the size of {name} is set by the arguments of its `generate`",
                fix=nearest(key, known),
            )
    return kind.generate(seed, split, **{key: _number(kind, key, value) for key, value in size.items()})


def _number(kind: type[Puzzle], key: str, value: object) -> float | None:
    wanted, optional = _types(kind)[key]
    if value is None and optional:
        return None
    # pandas turns integers into floats in columns with missing values. A bool is not a number here.
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        number = wanted(float(value))
        if number == value:
            return number
    raise ConfigError(f"{kind.name} {key}={value!r}", rule=f"it is of type {wanted.__name__}", fix="a number")


@functools.cache
def _types(kind: type[Puzzle]) -> dict[str, tuple[type[int] | type[float], bool]]:
    """Of each size argument its type, int or float, and whether it may be None."""
    hints = get_type_hints(kind.generate)
    found = {name: get_args(hints[name]) or (hints[name],) for name in _defaults(kind)}
    return {name: (types[0], len(types) > 1) for name, types in found.items()}


@functools.cache
def _defaults(kind: type[Puzzle]) -> dict[str, object]:
    parameters = inspect.signature(kind.generate).parameters.values()
    return {item.name: item.default for item in parameters if item.name not in ("seed", "split")}


def row(name: str, seed: int, split: str, size: Size) -> dict[str, object]:
    """A dataset row for verl. It stores the seed and the full size, from which the board is generated."""
    full_size = {key: value for key, value in (_defaults(PUZZLES[name]) | dict(size)).items() if value is not None}
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": f"{name} {split} {seed}"}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": seed, PUZZLE: name, SEED: seed, SPLIT: split, SIZE: full_size},
    }


def write_boards(file: Path, name: str, size: Size, split: str, count: int, first: int = 0) -> None:
    """Write `count` boards of a split, from number `first`, as rows that verl reads."""
    import pandas

    file.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame([row(name, first + i, split, size) for i in range(count)]).to_parquet(file)


def board_of(extra_info: Mapping[str, Any]) -> Puzzle:
    """The board that a row names."""
    for key in (PUZZLE, SEED, SPLIT, SIZE):
        if key not in extra_info:
            raise DataError(
                f"extra_info has no {key!r}",
                rule="a puzzle workflow needs rows that name a board",
                fix="create them with verl_mas.gym.puzzles.boards.row or `verl-mas data puzzle`",
            )
    # Parquet adds the keys of other rows in the file, with None.
    size = {key: value for key, value in extra_info[SIZE].items() if value is not None}
    return board(extra_info[PUZZLE], int(extra_info[SEED]), extra_info[SPLIT], size)
