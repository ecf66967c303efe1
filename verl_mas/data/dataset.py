"""Data sets of `verl-mas data <name>`: training and test files, with a manifest that describes them."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from verl_mas.config.registry import Registry
from verl_mas.data.items import Item, distinct, overlap
from verl_mas.data.sources import PublicSet, Rows, checksum
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import DataError
from verl_mas.run_folder.disk import whole_file, write_whole, writing

MANIFEST = "manifest.json"
FILES = {split: f"{split}.parquet" for split in ("train", "test", "validation")}  # by split


def check_left(source: str, count: int, kind: str, held_out: int) -> None:
    """Check that data is left to train on if the first `held_out` items become the test set."""
    if count <= held_out:
        value, rule = f"--test-rows {held_out} of {source}, which has {count} {kind}s", f"at least one {kind} is left"
        raise DataError(value, rule=f"{rule} to train on", fix=f"set --test-rows {count // 5 or 1}")


@dataclass
class Prepared:
    """The items of a data set, and their sources."""

    train: Sequence[Item]
    test: Sequence[Item]
    validation: Sequence[Item]  # the part of the test set on which a run validates during training
    # Data set -> its facts, such as repository or file, revision and number of rows read.
    sources: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)  # further content of the manifest

    def write(self, folder: Path) -> dict[str, object]:
        """Write train.parquet, test.parquet, validation.parquet and the manifest, which is also returned."""
        once = distinct(self.train)
        shared = overlap(once, self.test)
        dropped = {item.key for item in shared}
        train = [item for item in once if item.key not in dropped]
        files = {"train": train, "test": self.test, "validation": self.validation}
        for split, items in files.items():
            if not items:
                value = f"{split} has no rows: {len(self.train)} read for training, {len(shared)} of them also in test"
                rule = "each file has at least one row"
                raise DataError(value, rule=rule, fix="give other files")
        checksums = {}
        for split, items in files.items():
            rows = [item.row(index, split) for index, item in enumerate(items)]
            write_parquet(rows, folder / FILES[split])
            checksums[split] = checksum(rows)
        manifest = {
            "sources": self.sources,
            "rows": {split: len(items) for split, items in files.items()},
            "sha256": checksums,
            "train_duplicates_dropped": len(self.train) - len(once),
            "train_rows_also_in_test": len(shared),
            "overlap_examples": [item.question[:200] for item in shared[:5]],
            **self.details,
        }
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        return manifest


def write_parquet(rows: Sequence[Row], out: Path) -> None:
    """Write rows as a file that verl reads. `out` is replaced only by a complete file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.Table.from_pylist(list(rows))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        rule = "a column of parquet has one type: all ground truths are texts, or all are lists"
        fix = "make the answers and the columns that are kept alike in all rows"
        raise DataError(f"rows with different types: {error}", rule=rule, fix=fix) from error
    with writing(out, "the rows are written as a whole file"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as new:
            pq.write_table(table, new)


# Loads a public set: returns its rows and their revision.
Loader: TypeAlias = Callable[[PublicSet], tuple[Rows, str]]


class DataSet:
    """Base class of data sets. A subclass overrides both methods, and its docstring is the help text."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add options to the parser, which already has --out, the folder to write."""

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        """Read or generate the rows; `load` reads a public set."""
        raise NotImplementedError


DATA_SETS: Registry[type[DataSet]] = Registry("data set", package="verl_mas.cli.data", group="verl_mas.data_sets")
