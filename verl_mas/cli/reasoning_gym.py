"""Write training and held-out rows of a task of reasoning-gym, which its own verifier scores."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verl_mas.cli._arguments import check_count, values
from verl_mas.data.reasoning_gym import rows
from verl_mas.splits import TEST, TRAIN


def main(argv: list[str]) -> int:
    import pandas

    options = _parser().parse_args(argv)
    check_count("--train", options.train)
    check_count("--test", options.test)
    folder, config = Path(options.out), values(options.config)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in ((TRAIN, options.train), (TEST, options.test)):
        made = rows(options.task, count, split, options.seed, config)
        pandas.DataFrame(made).to_parquet(folder / f"{split}.parquet")
    sys.stdout.write(f"{folder}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("verl-mas reasoning_gym", description=__doc__)
    parser.add_argument("task", help="maze, countdown, gsm_symbolic, ...")
    parser.add_argument("--out", required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--config", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the task")
    parser.add_argument("--train", type=int, default=1024, help="training questions")
    parser.add_argument("--test", type=int, default=200, help="held-out questions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training questions")
    return parser
