"""A synthetic corpus: thousands of documents and multi-hop questions whose answers no model has memorised.

Each entity has one document that states its relations to other entities. A question follows a path of relations. The
names are made up, so an answer can be found only by reading the documents of the path, one after another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from verl_mas.errors import ConfigError
from verl_mas.retrieval.corpus import Passage


@dataclass(frozen=True)
class Relation:
    of: str
    to: str
    # The sentence in a document, and the phrase in a question.
    statement: str
    phrase: str


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
# Of a hundred entities. Questions only start at books and ships: no relation leads to them.
SHARES = {"country": 4, "river": 8, "city": 22, "person": 36, "company": 12, "book": 10, "ship": 8}
OPENINGS = {
    "country": "{s} is a country.",
    "river": "{s} is a river.",
    "city": "{s} is a city.",
    "person": "{s} is a person of some renown.",
    "company": "{s} is a trading company.",
    "book": "{s} is a book.",
    "ship": "{s} is a ship.",
}
ONSETS = "b bl br d dr f fl g gl gr h j k kl kr l m n p pl pr r s sk st str t tr v w z".split()
VOWELS = ["a", "e", "i", "o", "u", "ai", "ei", "ou"]
ENDINGS = ["l", "m", "n", "r", "s", "th", "x", "nd", "rk"]
# One entity in so many is for testing, with every question that starts there.
TESTED = 8


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    # The titles of the documents that lead to the answer, in order.
    path: tuple[str, ...]
    # The query for a search engine at each hop, in order.
    sub_queries: tuple[str, ...]
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
        """The same names with other facts."""
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
        """One document per entity, in a fixed order."""
        return [self._document(kind, name) for kind, names in self.kinds.items() for name in names]

    def questions(
        self, count: int, *, hops: tuple[int, ...] = (2, 3), split: str = "train", seed: int = 0
    ) -> list[Question]:
        """Distinct questions, equally many of each number of hops. No question is in both splits."""
        rng = random.Random(f"{split} {seed}")
        found: dict[str, Question] = {}
        tries = 0
        while len(found) < count:
            question = self._question(hops[len(found) % len(hops)], rng)
            if question.split == split:
                found.setdefault(question.text, question)
            tries += 1
            if tries > 50 * count + 1_000:
                raise ConfigError(
                    f"{count} questions of {hops} hops",
                    rule=f"this world does not have that many in {split!r} (train or test)",
                    fix="use fewer rows or more entities",
                )
        return list(found.values())

    def _question(self, hops: int, rng: random.Random) -> Question:
        kind = rng.choice([kind for kind in self.kinds if any(relation.of == kind for relation in RELATIONS)])
        start = entity = rng.choice(self.kinds[kind])
        phrase, path, queries = start, [], []
        for _ in range(hops):
            relation = rng.choice([relation for relation in RELATIONS if relation.of == kind])
            phrase = relation.phrase.format(s=phrase)
            path.append(entity)
            queries.append(relation.phrase.format(s=entity))
            entity, kind = self.facts[entity, relation], relation.to
        return Question(
            text=f"What is {phrase}?",
            answer=entity,
            path=tuple(path),
            sub_queries=tuple(queries),
            split="test" if start in self._tested else "train",
        )

    def _document(self, kind: str, name: str) -> Passage:
        sentences = [
            relation.statement.format(s=name, o=self.facts[name, relation])
            for relation in RELATIONS
            if relation.of == kind
        ]
        return Passage(id=name, title=name, text=" ".join([OPENINGS[kind].format(s=name), *sentences]))


def _names(count: int, rng: random.Random) -> Iterator[str]:
    seen: set[str] = set()
    while len(seen) < count:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((2, 3)))]
        name = ("".join(syllables) + rng.choice(ENDINGS)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name
