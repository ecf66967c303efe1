"""The task: shown a letter a dozen times, write it eight times more. And what it takes to train on it from nothing.

`python recipes/first_run/letters.py DIR` writes a random tiny model and the data to DIR.
"""

from __future__ import annotations

import sys
from pathlib import Path

LETTERS = "abcd"
SHOWN, LENGTH = 12, 8
# Any small letter earns a little, so that a model which starts as noise finds the way.
CONSOLATION = 0.05


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    """The share of the reply's characters that are the letter shown, in verl's reward signature."""
    earned = sum(1.0 if c == ground_truth else CONSOLATION if c.islower() else 0.0 for c in solution_str)
    return earned / max(LENGTH, len(solution_str))


def row(index: int) -> dict:
    letter = LETTERS[index % len(LETTERS)]
    return {
        "data_source": "letters",
        "prompt": [{"role": "user", "content": letter * SHOWN}],
        "reward_model": {"style": "rule", "ground_truth": letter},
        "extra_info": {"index": index},
    }


def prepare(folder: Path) -> None:
    import pandas as pd

    from verl_mas.warmup.tiny_model import tiny_model

    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([row(i) for i in range(256)]).to_parquet(folder / "train.parquet")
    pd.DataFrame([row(i) for i in range(32)]).to_parquet(folder / "test.parquet")
    tiny_model(folder / "model", parameters=100_000)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
