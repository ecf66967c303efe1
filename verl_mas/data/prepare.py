"""Training and test files, with a manifest that describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_mas.data.items import Item, distinct, overlap
from verl_mas.data.parquet import write_parquet
from verl_mas.errors import DataError
from verl_mas.run_folder.disk import write_whole

MANIFEST = "manifest.json"
# By split.
FILES = {split: f"{split}.parquet" for split in ("train", "test", "validation")}


@dataclass
class Prepared:
    """The items of a data set, and where they come from."""

    train: Sequence[Item]
    test: Sequence[Item]
    # The part of the test that is run during training.
    validation: Sequence[Item]
    # By set: repository or file, revision, rows read.
    sources: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    keep_overlap: bool = False
    # What else the manifest says.
    details: Mapping[str, object] = field(default_factory=dict)

    def write(self, folder: Path) -> dict[str, object]:
        """Write train.parquet, test.parquet, validation.parquet and the manifest, which is also returned."""
        once = distinct(self.train)
        shared = overlap(once, self.test)
        dropped = {item.key for item in shared} if not self.keep_overlap else set()
        train = [item for item in once if item.key not in dropped]
        files = {"train": train, "test": self.test, "validation": self.validation}
        for split, items in files.items():
            if not items:
                value = f"{split} has no rows: {len(self.train)} read for training, {len(shared)} of them also in test"
                rule = "each file has at least one row"
                raise DataError(value, rule=rule, fix="give other files, or --keep-overlap to train on test questions")
        for split, items in files.items():
            write_parquet([item.row(index, split) for index, item in enumerate(items)], folder / FILES[split])
        manifest = {
            "sources": self.sources,
            "rows": {split: len(items) for split, items in files.items()},
            "train_duplicates_dropped": len(self.train) - len(once),
            "train_rows_also_in_test": len(shared),
            "overlap_kept": self.keep_overlap,
            "overlap_examples": [item.question[:200] for item in shared[:5]],
            **self.details,
        }
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        return manifest
