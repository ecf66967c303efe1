"""A search team that knows the way to every answer in an invented world, and sometimes goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from verl_mas.data.invented import RELATIONS, InventedWorld, Question
from verl_mas.retrieval import SearchResult
from verl_mas.retrieval.corpus import Passage
from verl_mas.retrieval.source import Source
from verl_mas.warmup.demonstrations import Lesson, acted
from verl_mas.workflow import Request, Task
from verl_mas.workflows.search_team import ANSWER, QUERY, Enough, SearchTeam

# Of one world before the next, from the starting points of each split: its facts must not be worth learning by heart,
# and a name that no lesson speaks of stays a token without a meaning.
_QUESTIONS = {"train": 35, "test": 5}
# Half of all acts are verdicts, and they are the easiest to learn.
_VERDICTS = 1 / 3


def lessons(world: InventedWorld, hops: Sequence[int], *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless. The names are those of `world`, the facts never are: what an answer is must be read.

    `noise` is the share of replies that are drawn from what could be said.
    """
    rng = random.Random(f"lessons {seed}")
    while True:
        told = world.retold(rng.randrange(2**32))
        for question in _questions(told, hops, rng):
            task = Task([{"role": "user", "content": question.text}], ground_truth=question.answer)
            team = Team(told, question, noise, rng)
            workflow = SearchLibrary()
            workflow.shelf = Library(told, team.read)
            for lesson in acted(workflow, task, team):
                if lesson.agent != "verifier" or rng.random() < _VERDICTS:
                    yield lesson


def _questions(told: InventedWorld, hops: Sequence[int], rng: random.Random) -> list[Question]:
    asked = [
        question
        for split, count in _QUESTIONS.items()
        for question in told.questions(count, hops=tuple(hops), split=split, seed=rng.randrange(2**32))
    ]
    rng.shuffle(asked)
    return asked


class Team:
    """All three of them, on one question."""

    def __init__(self, world: InventedWorld, question: Question, noise: float, rng: random.Random):
        self._world, self._question, self._noise, self._rng = world, question, noise, rng
        self.read: list[Passage] = []

    def __call__(self, request: Request) -> str:
        errs = self._rng.random() < self._noise
        return {"verifier": self._verdict, "searcher": self._query, "answerer": self._answer}[request.agent](errs)

    @property
    def _hop(self) -> int:
        """How many documents of the way, one after another, have been read."""
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
        # The blank makes a name the token that it is in the text; the codec takes it off.
        return ANSWER.render(found).replace(found, f" {found}")

    def _names(self) -> list[str]:
        """What the documents that were read speak of."""
        return [other for passage in self.read for (name, _), other in self._world.facts.items() if name == passage.id]


class Library:
    """A query brings the document of the entity that it names."""

    def __init__(self, world: InventedWorld, read: list[Passage]):
        self._documents = {passage.title: passage for passage in world.passages}
        self._read = read

    async def search(self, query: str) -> SearchResult:
        passage = next(self._documents[word] for word in query.split() if word in self._documents)
        self._read.append(passage)
        return SearchResult(query, (passage,))


class SearchLibrary(SearchTeam):
    shelf: Source | None = None

    def source(self) -> Source:
        return self.shelf or super().source()
