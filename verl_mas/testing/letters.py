"""A task for a first run: the prompt repeats a letter, and the reply should repeat it. This module makes the rows and
computes the reward.

`python -m verl_mas.testing.letters FOLDER` writes the rows and a tiny model.
"""

import sys
from pathlib import Path

from verl_mas.testing.tiny_model import tiny_model

LETTERS = "abcd"
PROMPT_LENGTH, LENGTH = 12, 8
OTHER_LETTER = 0.05  # reward of any other lower-case letter, which gives a random model a first signal


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Return the share of the reply's characters that are the letter; same signature as verl's reward functions."""
    earned = sum(1.0 if c == ground_truth else OTHER_LETTER if c.islower() else 0.0 for c in solution_str)
    return earned / max(LENGTH, len(solution_str))


def row(index: int) -> dict[str, object]:
    letter = LETTERS[index % len(LETTERS)]
    return {
        "data_source": "letters",
        "prompt": [{"role": "user", "content": letter * PROMPT_LENGTH}],
        "reward_model": {"style": "rule", "ground_truth": letter},
        "extra_info": {"index": index},
    }


def write(folder: Path, *, train: int = 256, test: int = 32) -> None:
    """Write train.parquet and test.parquet."""
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        start = train if split == "test" else 0
        pandas.DataFrame([row(start + index) for index in range(count)]).to_parquet(folder / f"{split}.parquet")


def prepare(folder: Path) -> None:
    """Write the data and a random tiny model."""
    write(folder)
    tiny_model(folder / "model", parameters=100_000)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
