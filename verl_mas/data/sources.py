"""Public datasets, read from the Hugging Face hub or from files, and their entries in the manifest."""

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import httpx

from verl_mas.environment.retrieval.files import Row, read_rows
from verl_mas.errors import ConfigError, DataError

Rows = Iterable[Row]


@dataclass(frozen=True)
class PublicSet:
    """A dataset on the Hugging Face hub. `revision` and `rows` are None if they are not published."""

    name: str
    repository: str
    split: str
    revision: str | None = None
    rows: int | None = None
    # Patterns of the split's files, for a repository with a loading script, which `datasets` refuses.
    files: Sequence[str] = ()


@dataclass
class RowSource:
    """A set that is read row by row, and its entry in the manifest. `expected`: the published number of rows."""

    name: str
    rows: Rows
    title: str
    record: dict[str, object] = field(default_factory=dict)
    expected: int | None = None

    def read(self) -> Iterator[Row]:
        """Read the rows. Raises DataError if the set has no rows, or if their number is not the published number."""
        count, digest = 0, hashlib.sha256()
        for row in self.rows:
            digest.update(as_bytes(row))
            yield row
            count += 1
        self.record |= {"rows": count, "sha256": digest.hexdigest()}
        if self.expected not in (None, count):
            fix = f"give another revision with --revision {self.name}=HASH, or a local file"
            raise DataError(f"{self.title} has {count} rows", rule=f"{self.name} has {self.expected} rows", fix=fix)
        if not count:
            rule = "a dataset has at least one row"
            raise DataError(f"{self.title} has no rows", rule=rule, fix="give another file or revision")


def as_bytes(row: Row) -> bytes:
    """Encode a row for a checksum. The bytes are equal on every machine, whatever the format of the file is."""
    return json.dumps(row, sort_keys=True, default=str).encode()


def checksum(rows: Iterable[Row]) -> str:
    """Return the sha256 of the rows, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(as_bytes(row))
    return digest.hexdigest()


def from_hub(public: PublicSet) -> tuple[Rows, str]:
    """Read the rows of a set from the hub; return them with their revision."""
    from datasets import load_dataset
    from huggingface_hub import HfApi

    try:
        revision = public.revision or str(HfApi().dataset_info(public.repository).sha)
        if public.files:
            return chain.from_iterable(map(read_rows, _downloaded(public, revision))), revision
        return load_dataset(public.repository, split=public.split, revision=revision), revision
    except ConfigError:
        raise
    # Errors if there is no network, repository, revision or split.
    except (OSError, httpx.HTTPError, ValueError) as error:
        value = f"{public.repository} ({public.split}) cannot be read: {type(error).__name__}: {error}"
        fix = "check the network, or give files with --train FILE and --test NAME=FILE"
        raise ConfigError(value, rule="a public set is read from the Hugging Face hub", fix=fix) from error


def _downloaded(public: PublicSet, revision: str) -> list[Path]:
    from huggingface_hub import hf_hub_download, list_repo_files

    names = list_repo_files(public.repository, repo_type="dataset", revision=revision)
    paths = []
    for pattern in public.files:
        matching = sorted(fnmatch.filter(names, pattern))
        if not matching:
            value = f"{public.repository} at {revision} has no file {pattern}"
            fix = f"give another revision with --revision {public.name}=HASH, or a local file"
            raise ConfigError(value, rule=f"{public.name} is read from its files {', '.join(public.files)}", fix=fix)
        for name in matching:
            paths.append(Path(hf_hub_download(public.repository, name, repo_type="dataset", revision=revision)))
    return paths
