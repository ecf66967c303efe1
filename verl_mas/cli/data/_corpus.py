"""The corpus from which the index of a search team is built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from verl_mas.retrieval.corpus import Passage


def write_corpus(folder: Path, passages: Iterable[Passage]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "wb") as corpus:
        corpus.writelines(passage.to_json() + b"\n" for passage in passages)
