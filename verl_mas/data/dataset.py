"""What `verl-mas data <name>` writes, and how it is found."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

from verl_mas.data.prepare import Prepared
from verl_mas.data.sources import PublicSet, Rows
from verl_mas.registry import Registry

# The rows of a public set, and the revision that they are of.
Loader: TypeAlias = Callable[[PublicSet], tuple[Rows, str]]


class DataSet:
    """Override both. The class's docstring is the help."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Options beside --out, the folder to write."""

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        raise NotImplementedError


DATA_SETS: Registry[type[DataSet]] = Registry("data set", package="verl_mas.cli.data", group="verl_mas.data_sets")
