"""Teams of which each agent sees a part: their arguments, and rows that they cannot use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from verl_mas.data.items import Item
from verl_mas.gym.puzzles.base import write_boards
from verl_mas.gym.split_clues import items as clue_items
from wrong_configs.case import Case
from wrong_configs.workflow_args import team

ROWS = " data.train_files={folder}/rows.parquet data.val_files={folder}/rows.parquet"


def on_rows(name: str, argument: str, says: str, prepare: Callable[[Path], None]) -> Case:
    return team(name, argument + ROWS, says, prepare=prepare)


def three_parts(folder: Path) -> None:
    _write(folder, clue_items(8, parts=3))


def without_an_answer(folder: Path) -> None:
    _write(folder, [Item(f"question {number}", "z", "split_clues") for number in range(8)])


def _write(folder: Path, items: Sequence[Item]) -> None:
    pq.write_table(
        pa.Table.from_pylist([item.row(index, "train") for index, item in enumerate(items)]), folder / "rows.parquet"
    )


def boards(folder: Path) -> None:
    """Of a puzzle, without the board that a guide sees."""
    write_boards(folder / "rows.parquet", "plan_path", {"size": 4}, "train", 8)


CASES = (
    team("split_clues", "parts=5", "mas.workflow.args.parts is a whole number, between 2 and 4"),
    team("split_clues", "control=both", "mas.workflow.args.control is one of none, all, part"),
    team("split_clues", "rounds=0", "mas.workflow.args.rounds is a whole number, at least 1"),
    team("guide_driver", "speaks=never", "mas.workflow.args.speaks is one of once, every_turn"),
    team("guide_driver", "continuations=65", "mas.workflow.args.continuations is a whole number, between 0 and 64"),
    on_rows("split_clues", "parts=2", "--parts 2", three_parts),
    on_rows("split_clues", "parts=3", "a right letter", without_an_answer),
    on_rows("guide_driver", "speaks=once", "create them with `verl-mas data guide_driver`", boards),
)
