"""The task: shown a letter a dozen times, write it eight times more. Its rows, and verl's reward function for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LETTERS = "abcd"
SHOWN, LENGTH = 12, 8
# Any small letter earns a little, so that a model which starts as noise finds the way.
CONSOLATION = 0.05


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    """The share of the reply's characters that are the letter shown, in verl's reward signature."""
    earned = sum(1.0 if c == ground_truth else CONSOLATION if c.islower() else 0.0 for c in solution_str)
    return earned / max(LENGTH, len(solution_str))


def row(index: int) -> dict[str, Any]:
    letter = LETTERS[index % len(LETTERS)]
    return {
        "data_source": "letters",
        "prompt": [{"role": "user", "content": letter * SHOWN}],
        "reward_model": {"style": "rule", "ground_truth": letter},
        "extra_info": {"index": index},
    }


def write(folder: Path, *, train: int = 256, test: int = 32) -> None:
    """train.parquet and test.parquet."""
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        pandas.DataFrame([row(index) for index in range(count)]).to_parquet(folder / f"{split}.parquet")
