"""The data sets of `verl-mas data <name>`, and how they are found."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

from verl_mas.data.prepare import Prepared
from verl_mas.data.sources import PublicSet, Rows
from verl_mas.registry import Registry

# The rows of a public set, and their revision.
Loader: TypeAlias = Callable[[PublicSet], tuple[Rows, str]]


class DataSet:
    """Override both methods. The class's docstring is the help text."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add options. --out, the folder to write, is there already."""

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        """Read or generate the rows; `load` reads a public set."""
        raise NotImplementedError


DATA_SETS: Registry[type[DataSet]] = Registry("data set", package="verl_mas.cli.data", group="verl_mas.data_sets")
