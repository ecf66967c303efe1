"""The public sets that the papers train and test on, and reading a set from the hub or from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_mas.errors import ConfigError, DataError

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class PublicSet:
    """A dataset on the Hugging Face hub. `revision` or `rows` None: nothing public says it, so it is not checked."""

    name: str
    repository: str
    split: str
    revision: str | None = None
    rows: int | None = None


# The sets of Dr. MAS's own preparation. Revisions and row counts are those that several public projects pin.
MATH_TRAIN = (PublicSet("dapo_filter", "aaabiao/dapo_filter", "train"),)
MATH_TEST = (
    PublicSet("math500", "HuggingFaceH4/MATH-500", "test", "ff5b20257d8185524591543f8ff5993951537bb8", 500),
    PublicSet("aime24", "HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", 30),
    PublicSet("aime25", "MathArena/aime_2025", "train", "c94da77eb22bbd6439e62a323bec18493a421302", 30),
    PublicSet("amc23", "knoveleng/AMC-23", "train", rows=40),
    PublicSet("olympiadbench", "realtreetune/olympiadbench", "test"),
    PublicSet("minerva", "zwhe99/simplerl-minerva-math", "test", rows=272),
)
# Training: NQ and HotpotQA. Its test split holds all seven test sets, told apart by `data_source`.
_SEARCH_R1 = ("PeterJinGo/nq_hotpotqa_train", "b7d80abfee334a7a91cb377544f09180d58b34f6")
SEARCH_TRAIN = (PublicSet("nq_hotpotqa", _SEARCH_R1[0], "train", _SEARCH_R1[1], 169_615),)
SEARCH_TEST = (PublicSet("search_r1_test", _SEARCH_R1[0], "test", _SEARCH_R1[1], 51_713),)


def pinned(sets: Iterable[PublicSet], revisions: Mapping[str, str]) -> list[PublicSet]:
    """With the revisions that the user gave by set name."""
    return [replace(one, revision=revisions.get(one.name, one.revision)) for one in sets]


def from_hub(one: PublicSet) -> tuple[Rows, str]:
    """The rows, and the revision they are of."""
    from datasets import load_dataset
    from huggingface_hub import HfApi

    revision = one.revision or str(HfApi().dataset_info(one.repository).sha)
    return load_dataset(one.repository, split=one.split, revision=revision), revision


def checked(one: PublicSet, rows: Rows) -> list[Mapping[str, Any]]:
    listed = list(rows)
    if one.rows is not None and len(listed) != one.rows:
        raise DataError(
            f"{one.repository} ({one.split}) has {len(listed)} rows",
            rule=f"{one.name} has {one.rows}",
            way_out=f"give another revision with --revision {one.name}=HASH, or a local file",
        )
    return listed


def from_file(path: Path) -> list[Mapping[str, Any]]:
    reader = READERS.get(path.suffix)
    if reader is None or not path.is_file():
        raise ConfigError(
            f"file {path}", rule=f"an existing file that ends in {', '.join(READERS)}", way_out="give its path"
        )
    rows = reader(path)
    if not rows:
        raise DataError(f"{path} has no rows", rule="a dataset has rows", way_out="give another file")
    return rows


def _json_lines(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: {error}", rule="one JSON object a line", way_out="mend it"
            ) from error
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Mapping[str, Any]]]] = {".jsonl": _json_lines, ".parquet": _parquet}
