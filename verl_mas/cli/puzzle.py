"""Write boards for a puzzle recipe and, for a laptop, a tiny model warmed up on demonstrations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verl_mas.cli._arguments import check_count, check_noise, values
from verl_mas.puzzles.base import PUZZLES
from verl_mas.puzzles.boards import board, write_boards
from verl_mas.splits import TEST, TRAIN
from verl_mas.user_code import load_module
from verl_mas.warmup.puzzles import lessons, tiny_workflow
from verl_mas.warmup.train import WarmUp, log_loss, warm_up


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    for where in options.plugins:
        load_module(where, "--plugins")
    check_count("--train", options.train)
    check_count("--test", options.test)
    check_noise(options.noise)
    size = values(options.size)
    practice = size | values(options.practice)
    warm_up_config = WarmUp(seed=options.seed).changed(values(options.warm_up))
    workflow = tiny_workflow(options.workflow, values(options.args)) if options.noise is not None else None
    # Fail before anything is written if one of the boards cannot be made.
    board(options.puzzle, 0, TRAIN, practice)
    board(options.puzzle, 0, TEST, size)
    folder = Path(options.out)
    write_boards(folder / "train.parquet", options.puzzle, practice, TRAIN, options.train, options.seed * options.train)
    write_boards(folder / "test.parquet", options.puzzle, size, TEST, options.test, options.first_test)
    if workflow:
        source = lessons(workflow, options.puzzle, practice, noise=options.noise, seed=options.seed)
        warm_up(folder / "model", source, warm_up_config, log_loss)
    sys.stdout.write(f"{folder}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("verl-mas puzzle", description=__doc__)
    parser.add_argument("puzzle", help=f"{', '.join(PUZZLES)}, or one of --plugins")
    parser.add_argument("--out", required=True, help="folder for train.parquet, test.parquet and model/")
    parser.add_argument(
        "--plugins",
        nargs="*",
        default=[],
        metavar="FILE",
        help="Python files or modules that register puzzles or workflows",
    )
    parser.add_argument("--size", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the boards")
    parser.add_argument(
        "--practice",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the training boards, where they differ",
    )
    parser.add_argument("--train", type=int, default=4096, help="training boards")
    parser.add_argument("--test", type=int, default=200, help="held-out boards, the same for every seed")
    parser.add_argument("--first-test", type=int, default=0, help="number of the first held-out board")
    parser.add_argument("--seed", type=int, default=0, help="seed of training boards, demonstrations and the model")
    parser.add_argument(
        "--noise", type=float, help="share of random actions in the demonstrations; also writes the tiny model"
    )
    parser.add_argument(
        "--workflow", default="planner_executor", help="the workflow with whose prompts the model is warmed up"
    )
    parser.add_argument("--args", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the workflow")
    parser.add_argument(
        "--warm-up",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the warm-up: steps, batch, hidden, ...",
    )
    return parser
