"""Data sets from the Hugging Face hub, or from files instead."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from verl_mas.cli._arguments import pairs
from verl_mas.data import sources
from verl_mas.data.dataset import Loader
from verl_mas.data.items import Item
from verl_mas.data.prepare import Prepared
from verl_mas.data.sources import PublicSet
from verl_mas.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", type=Path, help="a .jsonl or .parquet file instead of the public set")
    parser.add_argument("--test", action="append", default=[], metavar="NAME=FILE", help="instead of the public sets")
    parser.add_argument("--revision", action="append", default=[], metavar="SET=HASH", help="pin a public set")
    parser.add_argument("--keep-overlap", action="store_true", help="keep test questions in the training file")


class Reading:
    """Reads sets from the hub or from files, and records each for the manifest."""

    def __init__(
        self, make: Callable[[Mapping[str, object], int, str], Item], load: Loader, options: argparse.Namespace
    ):
        self._make, self._load, self._options = make, load, options
        self._revisions = pairs(options.revision, "--revision SET=HASH")
        self._sources: dict[str, Mapping[str, object]] = {}

    def all(self, train: tuple[PublicSet, ...], test: tuple[PublicSet, ...]) -> tuple[list[Item], list[Item]]:
        unknown = set(self._revisions) - {one.name for one in (*train, *test)}
        if unknown:
            raise ConfigError(
                f"--revision {sorted(unknown)[0]}",
                rule="it names one of the public sets",
                fix=f"known: {', '.join(one.name for one in (*train, *test))}",
            )
        files = {"train": self._options.train} if self._options.train else {}
        tests = {name: Path(path) for name, path in pairs(self._options.test, "--test NAME=FILE").items()}
        return (
            self._files(files) if files else self._public(train),
            self._files(tests) if tests else self._public(test),
        )

    def prepared(self, train: list[Item], test: list[Item], validation: list[Item]) -> Prepared:
        return Prepared(train, test, validation, self._sources, self._options.keep_overlap)

    def _files(self, files: Mapping[str, Path]) -> list[Item]:
        items = []
        for name, path in files.items():
            rows = sources.from_file(path)
            self._sources[name] = {"file": str(path), "rows": len(rows)}
            items += [self._make(row, number, name) for number, row in enumerate(rows)]
        return items

    def _public(self, sets: tuple[PublicSet, ...]) -> list[Item]:
        items = []
        for one in sources.pinned(sets, self._revisions):
            found, revision = self._load(one)
            rows = sources.checked(one, found)
            self._sources[one.name] = {
                "repository": one.repository,
                "split": one.split,
                "revision": revision,
                "revision_pinned": one.revision is not None,
                "rows": len(rows),
            }
            items += [self._make(row, number, one.name) for number, row in enumerate(rows)]
        return items
