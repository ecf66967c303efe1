"""Demonstrations of a search team on an invented world: the shortest searches, with errors at a set rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from verl_mas.gym.invented import RELATIONS, InventedWorld, Question
from verl_mas.gym.warmup.demonstrations import Lesson, demonstrate
from verl_mas.retrieval import SearchResult
from verl_mas.retrieval.corpus import Passage
from verl_mas.retrieval.source import Source
from verl_mas.workflow import Request, Task
from verl_mas.workflows.search_team import ANSWER, QUERY, Enough, SearchTeam

# Questions per world and split. The facts change often, so that they are not worth memorising; both splits are used,
# so that the lessons contain every name.
_QUESTIONS = {"train": 35, "test": 5}
# The share of verdicts that are kept: half of all acts are verdicts, which are the easiest to learn.
_VERDICTS = 1 / 3


def lessons(world: InventedWorld, hops: Sequence[int], *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless. The names are those of `world`, the facts are not: an answer must be read from the documents.

    `noise` is the share of random replies.
    """
    rng = random.Random(f"lessons {seed}")
    while True:
        variant = world.with_other_facts(rng.randrange(2**32))
        for question in _questions(variant, hops, rng):
            task = Task([{"role": "user", "content": question.text}], ground_truth=question.answer)
            team = ScriptedTeam(variant, question, noise, rng)
            workflow = LibrarySearch()
            workflow.library = Library(variant, team.read)
            for lesson in demonstrate(workflow, task, team):
                if lesson.agent != "verifier" or rng.random() < _VERDICTS:
                    yield lesson


def _questions(world: InventedWorld, hops: Sequence[int], rng: random.Random) -> list[Question]:
    questions = [
        question
        for split, count in _QUESTIONS.items()
        for question in world.questions(count, hops=tuple(hops), split=split, seed=rng.randrange(2**32))
    ]
    rng.shuffle(questions)
    return questions


class ScriptedTeam:
    """Verifier, searcher and answerer, on one question."""

    def __init__(self, world: InventedWorld, question: Question, noise: float, rng: random.Random):
        self._world, self._question, self._noise, self._rng = world, question, noise, rng
        self.read: list[Passage] = []

    def __call__(self, request: Request) -> str:
        errs = self._rng.random() < self._noise
        return {"verifier": self._verdict, "searcher": self._query, "answerer": self._answer}[request.agent](errs)

    @property
    def _hop(self) -> int:
        """The number of documents of the path that have been read, in order."""
        titles = {passage.title for passage in self.read}
        return next((n for n, title in enumerate(self._question.path) if title not in titles), self._question.hops)

    def _verdict(self, errs: bool) -> str:
        enough = self._hop == self._question.hops
        return Enough.render(Enough.YES if enough != errs else Enough.NO)

    def _query(self, errs: bool) -> str:
        queries = self._question.sub_queries
        wanted = queries[min(self._hop, len(queries) - 1)]
        if errs:
            entity = self._rng.choice(
                [self._question.path[0], *(passage.title for passage in self.read), *self._names()]
            )
            wanted = self._rng.choice(RELATIONS).phrase.format(s=entity)
        return QUERY.render(wanted)

    def _answer(self, errs: bool) -> str:
        names = self._names()
        found = self._question.answer
        if names and (errs or found not in names):
            found = self._rng.choice(names)
        # With a blank the name is the same token as in the documents; the codec strips it.
        return ANSWER.render(found).replace(found, f" {found}")

    def _names(self) -> list[str]:
        """The entities that the documents read so far name."""
        return [other for passage in self.read for (name, _), other in self._world.facts.items() if name == passage.id]


class Library:
    """A query returns the document of the entity that it names."""

    def __init__(self, world: InventedWorld, read: list[Passage]):
        self._documents = {passage.title: passage for passage in world.passages}
        self._read = read

    async def search(self, query: str) -> SearchResult:
        passage = next(self._documents[word] for word in query.split() if word in self._documents)
        self._read.append(passage)
        return SearchResult(query, (passage,))


class LibrarySearch(SearchTeam):
    library: Source | None = None

    def source(self) -> Source:
        return self.library or super().source()
