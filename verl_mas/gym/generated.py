"""Generated data sets of any size and, on request, a tiny model warmed up on demonstrations."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from verl_mas.cli._arguments import add_rows, add_seed, add_settings, check_noise, check_rows, values
from verl_mas.gym.warmup.demonstrations import Lesson
from verl_mas.gym.warmup.train import WarmUp, log_loss, warm_up


def add_arguments(parser: argparse.ArgumentParser, *, train: int | None, test: int | None) -> None:
    """`train` and `test` are the default numbers of rows; None: as many as there are."""
    add_rows(parser, train=train, test=test)
    add_warm_up(parser)


def add_warm_up(parser: argparse.ArgumentParser) -> None:
    add_seed(parser, "seed of what is generated; the held-out rows of a puzzle are the same for every seed")
    parser.add_argument(
        "--noise",
        type=float,
        metavar="SHARE",
        help="also write a tiny model to model/, warmed up on demonstrations with this share of errors",
    )
    add_settings(parser, "--warm-up", "settings of the warm-up: steps, batch, hidden, ...")


def checked(options: argparse.Namespace, taught: WarmUp) -> WarmUp:
    """The warm-up of the tiny model; refuses wrong values before anything is written."""
    check_rows(options)
    return checked_warm_up(options, taught)


def checked_warm_up(options: argparse.Namespace, taught: WarmUp) -> WarmUp:
    """The same for a data set of which all rows are written."""
    check_noise(options.noise)
    return taught.changed({"seed": options.seed} | values(options.warm_up, "--warm-up NAME=VALUE"))


def teach(options: argparse.Namespace, lessons: Iterator[Lesson], taught: WarmUp) -> None:
    """Write the tiny model of a laptop variant to `model` beside the data."""
    warm_up(options.out / "model", lessons, taught, log_loss)
