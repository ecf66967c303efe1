"""Data sets from the Hugging Face hub, or from files instead."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from verl_mas.cli._arguments import add_settings, pairs
from verl_mas.data import own_rows
from verl_mas.data.dataset import DataSet, Loader, Prepared
from verl_mas.data.items import Item, first_of_each
from verl_mas.data.sources import PublicSet, RowSource
from verl_mas.errors import ConfigError

# A function that makes an item from a row, the number of the row and the name of the data set.
MakeItem: TypeAlias = Callable[[Mapping[str, object], int, str], Item]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", type=Path, metavar="FILE", help="train on a .jsonl, .parquet or .arrow file instead")
    add_settings(parser, "--test", "test on these files instead", form="NAME=FILE")
    add_settings(parser, "--revision", "pin a public set", form="SET=HASH")


class Reading:
    """Reads data sets from the hub or from files, and records the source of each data set for the manifest."""

    def __init__(self, load: Loader, options: argparse.Namespace):
        self._load, self._options = load, options
        self._revisions = pairs(options.revision, "--revision SET=HASH")
        self._sources: dict[str, Mapping[str, object]] = {}

    def open(self, train: Sequence[PublicSet], test: Sequence[PublicSet]) -> tuple[list[RowSource], list[RowSource]]:
        """Open the sources of the training rows and of the test rows."""
        files = {"train": self._options.train} if self._options.train else {}
        tests = {name: Path(path) for name, path in pairs(self._options.test, "--test NAME=FILE").items()}
        read = [one.name for one in (*(() if files else train), *(() if tests else test))]
        if unknown := set(self._revisions) - {*read}:
            rule, fix = "it names a public set that is read", f"known: {', '.join(read) or 'none'}"
            raise ConfigError(f"--revision {sorted(unknown)[0]}", rule=rule, fix=fix)
        twice = (set(files) or {one.name for one in train}) & (set(tests) or {one.name for one in test})
        if twice:
            value = f"two sets named {sorted(twice)[0]!r}"
            rule = "the manifest and the metrics tell sets apart by name; the file of --train is named 'train'"
            raise ConfigError(value, rule=rule, fix="give the file of --test another name")
        of_train = self._files(files) if files else self._public(train)
        opened = of_train, self._files(tests) if tests else self._public(test)
        self._sources = {source.name: source.record for part in opened for source in part}
        return opened

    def prepared(
        self,
        train: Sequence[Item],
        test: Sequence[Item],
        validation: Sequence[Item],
        details: Mapping[str, object] | None = None,
    ) -> Prepared:
        return Prepared(train, test, validation, self._sources, details or {})

    def _files(self, files: Mapping[str, Path]) -> list[RowSource]:
        return [RowSource(name, own_rows.read(path), str(path), {"file": str(path)}) for name, path in files.items()]

    def _public(self, sets: Sequence[PublicSet]) -> list[RowSource]:
        opened = []
        for public in sets:
            one = replace(public, revision=self._revisions.get(public.name, public.revision))
            rows, revision = self._load(one)
            place: dict[str, object] = {"repository": one.repository, "split": one.split}
            record = {**place, "revision": revision, "revision_pinned": one.revision is not None}
            opened.append(RowSource(one.name, rows, f"{one.repository} ({one.split})", record, one.rows))
        return opened


class Questions(DataSet):
    """A data set of questions, each made from one row of its source."""

    train_sets: Sequence[PublicSet]
    test_sets: Sequence[PublicSet]
    make: MakeItem
    in_training: Mapping[str, int] = {}
    """Number of questions per test set for validation during training. A test set that is not in this mapping has
    `otherwise` questions."""
    otherwise: int

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        reading = Reading(load, options)
        train, test = (
            [self.make(row, number, source.name) for source in part for number, row in enumerate(source.read())]
            for part in reading.open(self.train_sets, self.test_sets)
        )
        # If all sets are for the final test only, validate on all of them.
        return reading.prepared(train, test, first_of_each(test, self.in_training, otherwise=self.otherwise) or test)
