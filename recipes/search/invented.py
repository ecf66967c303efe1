"""A synthetic corpus: thousands of documents and multi-hop questions whose answers no model has memorised.

Each entity has one document that states its relations to other entities. A question follows a path of relations. The
names are made up, so an answer can be found only by reading the documents of the path, one after another.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from verl_mas.cli._arguments import whole
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.environment.retrieval.client import PassageSource, SearchResult
from verl_mas.environment.retrieval.corpus import Passage, write_corpus
from verl_mas.errors import ConfigError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Request, Task
from verl_mas.workflows.search_team import ANSWER, QUERY, Enough, SearchTeam


@dataclass(frozen=True)
class Relation:
    of: str
    to: str
    statement: str  # in a document
    phrase: str  # in a question


RELATIONS = (
    Relation("country", "city", "The capital of {s} is {o}.", "the capital of {s}"),
    Relation("country", "person", "{s} is governed by {o}.", "the governor of {s}"),
    Relation("city", "river", "{s} lies on the river {o}.", "the river of the city {s}"),
    Relation("city", "person", "The mayor of {s} is {o}.", "the mayor of {s}"),
    Relation("person", "city", "{s} was born in {o}.", "the birthplace of {s}"),
    Relation("person", "person", "The teacher of {s} was {o}.", "the teacher of {s}"),
    Relation("company", "person", "{s} was founded by {o}.", "the founder of {s}"),
    Relation("company", "city", "{s} has its seat in {o}.", "the seat of {s}"),
    Relation("book", "person", "The author of {s} is {o}.", "the author of {s}"),
    Relation("ship", "company", "The owner of {s} is {o}.", "the owner of {s}"),
    Relation("river", "country", "The river {s} rises in {o}.", "the country in which the river {s} rises"),
)
# Shares of the entities, in percent. Questions start only at books and ships, to which no relation leads.
SHARES = {"country": 4, "river": 8, "city": 22, "person": 36, "company": 12, "book": 10, "ship": 8}
OPENINGS = {kind: f"{{s}} is a {kind}." for kind in SHARES} | {
    "person": "{s} is a person of some renown.",
    "company": "{s} is a trading company.",
}
ONSETS = "b bl br d dr f fl g gl gr h j k kl kr l m n p pl pr r s sk st str t tr v w z".split()
VOWELS = ["a", "e", "i", "o", "u", "ai", "ei", "ou"]
ENDINGS = ["l", "m", "n", "r", "s", "th", "x", "nd", "rk"]
TESTED = 8  # every eighth entity is for testing, and so is every question that starts at it


@dataclass(frozen=True)
class PathQuestion:
    text: str
    answer: str
    path: tuple[str, ...]  # the titles of the documents that lead to the answer, in order
    sub_queries: tuple[str, ...]  # the query for a search engine at each hop, in order
    split: str

    @property
    def hops(self) -> int:
        return len(self.path)


class InventedWorld:
    """Entities with their facts. The same size and seed give the same world."""

    def __init__(self, entities: int = 5_000, seed: int = 0):
        if entities < 100:
            raise ConfigError(f"entities={entities}", rule="a world has at least 100 entities", fix="use 100 or more")
        rng = random.Random(f"invented world {seed}")
        names = iter(_names(entities, rng))
        self.kinds = {kind: [next(names) for _ in range(entities * share // 100)] for kind, share in SHARES.items()}
        self._tested = {name for names in self.kinds.values() for name in names[::TESTED]}
        self.facts = self._random_facts(rng)

    def with_other_facts(self, seed: int) -> InventedWorld:
        """Copy the world: the same names, with other facts."""
        other = copy(self)
        other.facts = self._random_facts(random.Random(f"retold {seed}"))
        other.__dict__.pop("passages", None)
        return other

    def _random_facts(self, rng: random.Random) -> dict[tuple[str, Relation], str]:
        return {
            (name, relation): rng.choice([other for other in self.kinds[relation.to] if other != name])
            for relation in RELATIONS
            for name in self.kinds[relation.of]
        }

    @cached_property
    def passages(self) -> list[Passage]:
        """The documents, one per entity, in a fixed order."""
        return [self._document(kind, name) for kind, names in self.kinds.items() for name in names]

    def questions(
        self, count: int, *, hops: tuple[int, ...] = (2, 3), split: str = "train", seed: int = 0
    ) -> list[PathQuestion]:
        """Draw distinct questions, equally many of each number of hops. No question is in both splits."""
        rng = random.Random(f"{split} {seed}")
        questions: dict[str, PathQuestion] = {}
        tries = 0
        while len(questions) < count:
            question = self._question(hops[len(questions) % len(hops)], rng)
            if question.split == split:
                questions.setdefault(question.text, question)
            tries += 1
            if tries > 50 * count + 1_000:
                rule = f"this world does not have that many in {split!r} (train or test)"
                raise ConfigError(f"{count} questions of {hops} hops", rule=rule, fix="use fewer rows or more entities")
        return list(questions.values())

    def _question(self, hops: int, rng: random.Random) -> PathQuestion:
        kind = rng.choice([kind for kind in self.kinds if _relations_of(kind)])
        start = entity = rng.choice(self.kinds[kind])
        phrase, path, queries = start, [], []
        for _ in range(hops):
            relation = rng.choice(_relations_of(kind))
            phrase = relation.phrase.format(s=phrase)
            path.append(entity)
            queries.append(relation.phrase.format(s=entity))
            entity, kind = self.facts[entity, relation], relation.to
        split = TEST if start in self._tested else TRAIN
        return PathQuestion(f"What is {phrase}?", entity, tuple(path), tuple(queries), split)

    def _document(self, kind: str, name: str) -> Passage:
        facts = [relation.statement.format(s=name, o=self.facts[name, relation]) for relation in _relations_of(kind)]
        return Passage(id=name, title=name, text=" ".join([OPENINGS[kind].format(s=name), *facts]))


def _relations_of(kind: str) -> list[Relation]:
    return [relation for relation in RELATIONS if relation.of == kind]


def _names(count: int, rng: random.Random) -> Iterator[str]:
    seen: set[str] = set()
    while len(seen) < count:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((2, 3)))]
        name = ("".join(syllables) + rng.choice(ENDINGS)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


# Questions per world and split. Facts change often, so that they are not worth memorising. Both splits are used, so
# that the lessons contain every name.
_QUESTIONS = {"train": 35, "test": 5}
# The share of verdicts that is kept. It is below 1, because half of all acts are verdicts, and these are the easiest
# to learn.
_VERDICTS = 1 / 3


def lessons(world: InventedWorld, hops: Sequence[int], *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly. They have the names of `world`, but other facts, so that answers must be read
    from the documents. `noise`: the share of random replies."""
    rng = random.Random(f"lessons {seed}")
    while True:
        variant = world.with_other_facts(rng.randrange(2**32))
        questions = [
            question
            for split, count in _QUESTIONS.items()
            for question in variant.questions(count, hops=tuple(hops), split=split, seed=rng.randrange(2**32))
        ]
        rng.shuffle(questions)
        for question in questions:
            task = Task([{"role": "user", "content": question.text}], ground_truth=question.answer)
            experts = SearchExperts(variant, question, noise, rng)
            workflow = LibrarySearch()
            workflow.library = experts
            for lesson in demonstrate(workflow, task, experts):
                if lesson.agent != "verifier" or rng.random() < _VERDICTS:
                    yield lesson


class SearchExperts:
    """Plays verifier, searcher and answerer on one question, and searches the documents of the world."""

    def __init__(self, world: InventedWorld, question: PathQuestion, noise: float, rng: random.Random):
        self._world, self._question, self._noise, self._rng = world, question, noise, rng
        self.read: list[Passage] = []

    def __call__(self, request: Request) -> str:
        errs = self._rng.random() < self._noise
        return {"verifier": self._verdict, "searcher": self._query, "answerer": self._answer}[request.agent](errs)

    async def search(self, query: str) -> SearchResult:
        """Return the document of the entity that the query names."""
        words = query.split()
        self.read.append(next(passage for passage in self._world.passages if passage.title in words))
        return SearchResult(query, (self.read[-1],))

    @property
    def _hop(self) -> int:
        """The number of documents of the path that have been read in order."""
        titles = {passage.title for passage in self.read}
        return next((n for n, title in enumerate(self._question.path) if title not in titles), self._question.hops)

    def _verdict(self, errs: bool) -> str:
        enough = self._hop == self._question.hops
        return Enough.render(Enough.YES if enough != errs else Enough.NO)

    def _query(self, errs: bool) -> str:
        queries = self._question.sub_queries
        wanted = queries[min(self._hop, len(queries) - 1)]
        if errs:
            entities = [self._question.path[0], *(passage.title for passage in self.read), *self._names()]
            entity = self._rng.choice(entities)
            wanted = self._rng.choice(RELATIONS).phrase.format(s=entity)
        return QUERY.render(wanted)

    def _answer(self, errs: bool) -> str:
        names, answer = self._names(), self._question.answer
        if names and (errs or answer not in names):
            answer = self._rng.choice(names)
        # With a space before it, the name is the same token as in the documents; the codec strips the space.
        return ANSWER.render(answer).replace(answer, f" {answer}")

    def _names(self) -> list[str]:
        """Return the entities that occur in the documents read so far."""
        return [other for passage in self.read for (name, _), other in self._world.facts.items() if name == passage.id]


class LibrarySearch(SearchTeam):
    library: PassageSource | None = None

    def source(self) -> PassageSource:
        return self.library or super().source()


@DATA_SETS.register("invented")
class Invented(Generated):
    """A synthetic corpus with made-up names, and multi-hop questions about it."""

    # A search team must learn to copy names from passages.
    warm_up = WarmUp(steps=1_600, batch=64, learning_rate=4e-3, lessons=30_000, vocabulary=2_048, prompts=0.3)
    rows = (4_000, 200)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--entities", type=whole(1), default=5_000)
        parser.add_argument("--hops", type=whole(1), nargs="+", default=[2, 3])

    def generate(self, options: argparse.Namespace) -> Prepared:
        world = InventedWorld(options.entities, options.seed)
        train, test = (
            [
                Item(question.text, [question.answer], f"invented_{question.hops}_hops")
                for question in world.questions(count, hops=tuple(options.hops), split=split)
            ]
            for split, count in ((TRAIN, options.train_rows), (TEST, options.test_rows))
        )
        write_corpus(options.out, world.passages)
        kind = {"entities": options.entities, "seed": options.seed, "hops": options.hops}
        return Prepared(train, test, test, {"invented": kind})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        world = InventedWorld(options.entities, options.seed)
        return lessons(world, options.hops, noise=options.noise, seed=options.seed)
