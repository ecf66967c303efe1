"""Questions with their ground truth and source, as rows that verl reads."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from verl_mas.errors import ConfigError


@dataclass(frozen=True)
class Item:
    """A question with its ground truth, which is a string for math and a list of accepted answers for search."""

    question: str
    truth: str | list[str]
    source: str
    extra: Mapping[str, object] = field(default_factory=dict, kw_only=True)  # further fields of the row's extra_info

    @property
    def key(self) -> str:
        """The identity of the question: case, whitespace and the final punctuation mark are ignored."""
        return "".join(self.question.casefold().split()).rstrip(".?!")

    def row(self, index: int, split: str) -> dict[str, object]:
        return {
            "data_source": self.source,
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": self.truth},
            "extra_info": {"split": split, "index": index, **self.extra},
        }


T = TypeVar("T")
Kind = TypeVar("Kind", bound=Item)


def distinct(items: Iterable[Kind]) -> list[Kind]:
    """Keep the first item of each question."""
    return list({item.key: item for item in reversed(list(items))}.values())[::-1]


def overlap(train: Sequence[Kind], test: Sequence[Item]) -> list[Kind]:
    """Find training items whose questions are also among the test items."""
    tested = {item.key for item in test}
    return [item for item in train if item.key in tested]


def sampled(every: Sequence[T], count: int | None, rng: random.Random, *, kind: str, split: str) -> list[T]:
    """Sample different tasks of a split, in random order; without `count`, all of them."""
    if count is not None and count > len(every):
        rule = f"there are only {len(every)} in {split!r} (train or test)"
        raise ConfigError(f"{count} {kind}", rule=rule, fix="use fewer rows")
    return rng.sample(every, count or len(every))


def with_next(items: Sequence[Kind]) -> list[tuple[Kind, Kind]]:
    """Pair each item with the next item, and the last item with the first. Control experiments use the pairs to give
    an item a part of another item."""
    return list(zip(items, [*items[1:], *items[:1]], strict=True))


def first_of_each(items: Sequence[Kind], limits: Mapping[str, int], otherwise: int) -> list[Kind]:
    """Take the first `limits[source]` items of each source, as a small, fixed validation set."""
    taken: Counter[str] = Counter()
    kept = []
    for item in items:
        taken[item.source] += 1
        if taken[item.source] <= limits.get(item.source, otherwise):
            kept.append(item)
    return kept
