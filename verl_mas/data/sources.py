"""The public sets that the papers train and test on; reading a set from the hub or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from verl_mas.errors import ConfigError, DataError
from verl_mas.retrieval.files import SUFFIXES, Row, read_rows

Rows = Iterable[Row]


@dataclass(frozen=True)
class PublicSet:
    """A dataset on the Hugging Face hub. A `revision` or number of `rows` that is not published is None."""

    name: str
    repository: str
    split: str
    revision: str | None = None
    rows: int | None = None


# The sets of Dr. MAS. Revisions and row counts are those that several public projects pin.
MATH_TRAIN = (PublicSet("dapo_filter", "aaabiao/dapo_filter", "train"),)
MATH_TEST = (
    PublicSet("math500", "HuggingFaceH4/MATH-500", "test", "ff5b20257d8185524591543f8ff5993951537bb8", 500),
    PublicSet("aime24", "HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", 30),
    PublicSet("aime25", "MathArena/aime_2025", "train", "c94da77eb22bbd6439e62a323bec18493a421302", 30),
    PublicSet("amc23", "knoveleng/AMC-23", "train", rows=40),
    PublicSet("olympiadbench", "realtreetune/olympiadbench", "test"),
    PublicSet("minerva", "zwhe99/simplerl-minerva-math", "test", rows=272),
)
# Training: NQ and HotpotQA. The test split has all seven test sets; `data_source` says which.
_SEARCH_R1 = ("PeterJinGo/nq_hotpotqa_train", "b7d80abfee334a7a91cb377544f09180d58b34f6")
SEARCH_TRAIN = (PublicSet("nq_hotpotqa", _SEARCH_R1[0], "train", _SEARCH_R1[1], 169_615),)
SEARCH_TEST = (PublicSet("search_r1_test", _SEARCH_R1[0], "test", _SEARCH_R1[1], 51_713),)


def pinned(sets: Iterable[PublicSet], revisions: Mapping[str, str]) -> list[PublicSet]:
    """The sets, with the revisions that the user gave by name."""
    return [replace(one, revision=revisions.get(one.name, one.revision)) for one in sets]


def from_hub(one: PublicSet) -> tuple[Rows, str]:
    """The rows of a set, and their revision."""
    from datasets import load_dataset
    from huggingface_hub import HfApi

    try:
        revision = one.revision or str(HfApi().dataset_info(one.repository).sha)
        return load_dataset(one.repository, split=one.split, revision=revision), revision
    # No network, no such repository or revision, no such split.
    except (OSError, httpx.HTTPError, ValueError) as error:
        raise ConfigError(
            f"{one.repository} ({one.split}) cannot be read: {type(error).__name__}: {error}",
            rule="a public set is read from the Hugging Face hub",
            fix="check the network, or give files with --train FILE and --test NAME=FILE",
        ) from error


def checked(one: PublicSet, rows: Rows) -> list[Row]:
    """The rows of a set; another number of rows than the published one is refused."""
    listed = list(rows)
    if one.rows is not None and len(listed) != one.rows:
        raise DataError(
            f"{one.repository} ({one.split}) has {len(listed)} rows",
            rule=f"{one.name} has {one.rows} rows",
            fix=f"give another revision with --revision {one.name}=HASH, or a local file",
        )
    return _not_empty(listed, f"{one.repository} ({one.split})")


def from_file(path: Path) -> list[Row]:
    if not path.name.endswith(SUFFIXES) or not path.is_file():
        raise ConfigError(
            f"file {path}", rule=f"the file must exist and end in {', '.join(SUFFIXES)}", fix="give another path"
        )
    return _not_empty(list(read_rows(path)), str(path))


def _not_empty(rows: list[Row], source: str) -> list[Row]:
    if not rows:
        raise DataError(
            f"{source} has no rows", rule="a dataset has at least one row", fix="give another file or revision"
        )
    return rows
