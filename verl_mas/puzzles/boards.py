"""The puzzles by name, and the dataset rows that name a board."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from verl_mas.errors import ConfigError, DataError
from verl_mas.puzzles.base import PUZZLES, Puzzle
from verl_mas.registry import nearest

PUZZLE, SEED, SPLIT, SIZE = "puzzle", "seed", "split", "size"


def board(name: str, seed: int, split: str, size: Mapping[str, Any]) -> Puzzle:
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


def _number(kind: type[Puzzle], key: str, value: Any) -> int | float | None:
    wanted, *none = _types(kind)[key]
    # pandas makes floats of whole numbers where other rows have none; yes and no are no numbers.
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if number and wanted(value) == value:
        return wanted(value)
    if value is None and none:
        return None
    raise ConfigError(f"{kind.name} {key}={value!r}", rule=f"it is of type {wanted.__name__}", fix="a number")


@functools.cache
def _types(kind: type[Puzzle]) -> dict[str, tuple[type, ...]]:
    """int or float of every argument, with or without None."""
    hints = get_type_hints(kind.generate)
    return {name: get_args(hints[name]) or (hints[name],) for name in _defaults(kind)}


@functools.cache
def _defaults(kind: type[Puzzle]) -> dict[str, Any]:
    parameters = inspect.signature(kind.generate).parameters.values()
    return {item.name: item.default for item in parameters if item.name not in ("seed", "split")}


def row(name: str, seed: int, split: str, size: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset row for verl. It holds the seed and the whole size; the board is made again from them."""
    whole = {key: value for key, value in (_defaults(PUZZLES[name]) | dict(size)).items() if value is not None}
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": f"{name} {split} {seed}"}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": seed, PUZZLE: name, SEED: seed, SPLIT: split, SIZE: whole},
    }


def write_boards(file: Path, name: str, size: Mapping[str, Any], split: str, count: int, first: int = 0) -> None:
    """Boards number `first` and on of a split, as rows that verl reads."""
    import pandas

    file.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame([row(name, first + i, split, size) for i in range(count)]).to_parquet(file)


def board_of(extra_info: Mapping[str, Any]) -> Puzzle:
    """The board that a row stands for."""
    for key in (PUZZLE, SEED, SPLIT, SIZE):
        if key not in extra_info:
            raise DataError(
                f"extra_info has no {key!r}",
                rule="a puzzle workflow needs rows that name a board",
                fix="make them with verl_mas.puzzles.boards.row",
            )
    # Parquet fills the keys that other rows of the file have with None.
    size = {key: value for key, value in extra_info[SIZE].items() if value is not None}
    return board(extra_info[PUZZLE], int(extra_info[SEED]), extra_info[SPLIT], size)
