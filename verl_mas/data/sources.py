"""The public sets on which papers train and test, and functions that read a set from the hub or from a file."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import httpx

from verl_mas.errors import ConfigError, DataError
from verl_mas.retrieval.files import Row, read_rows

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
        """Read the rows. A set without rows, or with another number of rows than the published one, is refused."""
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
    """The bytes of a row for a checksum: equal on every machine, whatever the format of the file."""
    return json.dumps(row, sort_keys=True, default=str).encode()


def checksum(rows: Iterable[Row]) -> str:
    """The sha256 of the rows, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(as_bytes(row))
    return digest.hexdigest()


# The sets of Dr. MAS, with revisions and row counts that several public projects pin.
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
# The math sets of AT-GRPO, for a reasoner and a tool user.
_POLARIS = ("POLARIS-Project/Polaris-Dataset-53K", "296f8e34132e63f4a1d70e0dcc8bddebb43f03e4")
TOOL_MATH_TRAIN = (PublicSet("polaris", _POLARIS[0], "train", _POLARIS[1], 53_291),)
TOOL_MATH_TEST = tuple(public for public in MATH_TEST if public.name in ("aime24", "aime25", "olympiadbench"))
# Programming tasks. APPS, LiveCodeBench and TACO have loading scripts.
_APPS = ("codeparrot/apps", "21e74ddf8de1a21436da12e3e653065c5213e9d1")
_CODE_CONTESTS = ("deepmind/code_contests", "802411c3010cb00d1b05bad57ca77365a3c699d6")
_TACO = ("BAAI/TACO", "d593ed0a2becbbc952230bb89be09189bf1056dc")
_LIVECODEBENCH = ("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505")
_DEEPCODER = ("agentica-org/DeepCoder-Preview-Dataset", "177913a7bd43791646ef6a43645caa3c871ab3db")
_RELEASES = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7)))
CODE_TRAIN = (
    PublicSet("apps", _APPS[0], "train", _APPS[1], 5_000, ("train.jsonl",)),
    PublicSet("code_contests", _CODE_CONTESTS[0], "train", _CODE_CONTESTS[1], 13_328),
    PublicSet("taco", _TACO[0], "train", _TACO[1], 25_443, ("train/*.arrow",)),
    PublicSet("deepcoder", _DEEPCODER[0], "train", _DEEPCODER[1], 16_252, ("primeintellect/train*.parquet",)),
)
CODE_TEST = (
    PublicSet("livecodebench_v6", _LIVECODEBENCH[0], "test", _LIVECODEBENCH[1], 1_055, _RELEASES),
    PublicSet("livecodebench_v5", _LIVECODEBENCH[0], "test", _LIVECODEBENCH[1], 880, _RELEASES[:5]),
    PublicSet("apps_test", _APPS[0], "test", _APPS[1], 5_000, ("test.jsonl",)),
    PublicSet("code_contests_test", _CODE_CONTESTS[0], "test", _CODE_CONTESTS[1], 165),
    PublicSet("taco_test", _TACO[0], "test", _TACO[1], 1_000, ("test/*.arrow",)),
)


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
