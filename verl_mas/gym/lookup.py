"""Tables of symbols, cut into shards: what is two steps from a symbol? Neither step is in the shard of the other."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb

from verl_mas.data.items import Item, with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.workflow.client import DatasetFields

SYMBOLS = string.ascii_lowercase + string.ascii_uppercase
SOURCE, SHUFFLED = "lookup", "lookup_shuffled"
# A key of `extra_info`.
SHARDS = "shards"
# Between the shards in a row.
CUT = "|"
HOPS = 2


@dataclass(frozen=True)
class Table:
    """Every symbol has a successor. A shard is a text: its number, then the successors of its symbols in their order.

    With two symbols per shard, "1 d a" says that a is followed by d and b by a; "2 ..." says what follows c and d.
    """

    shards: tuple[str, ...]

    def path(self, start: str, hops: int = HOPS) -> str:
        """The symbols that follow `start`, in order."""
        found, following = start, successors(" ".join(self.shards))
        for _ in range(hops):
            found += following[found[-1]]
        return found[1:]


def successors(text: str) -> dict[str, str]:
    """The successor of each symbol of the shards in a text."""
    found: dict[str, str] = {}
    for number, *values in (shard.split() for shard in re.findall(r"\d+[^\d]*", text)):
        keys = SYMBOLS[(int(number) - 1) * len(values) :]
        found |= dict(zip(keys, values, strict=False))
    return found


def draw(shards: int, keys: int, rng: random.Random) -> tuple[Table, str]:
    """A cycle through all symbols, and a question whose two steps are in different shards; all such pairs are equally
    probable."""
    symbols = SYMBOLS[: shards * keys]
    while True:
        order = rng.sample(symbols, len(symbols))
        following = dict(zip(order, order[1:] + order[:1], strict=True))
        asked = rng.choice(symbols)
        if symbols.index(asked) // keys != symbols.index(following[asked]) // keys:
            texts = [
                " ".join([str(number + 1), *(following[symbol] for symbol in symbols[number * keys :][:keys])])
                for number in range(shards)
            ]
            return Table(tuple(texts)), asked


def floor(shards: int, keys: int) -> Fraction:
    """The share of questions that the best guess from the question and one shard gets right, exactly.

    The shard cuts the cycle into chains; a symbol that it says nothing of is a chain by itself. With the first step in
    the shard, the answer is the start of any other chain. Else the best guess is the second symbol of any longer
    chain. If the only one ends in the question, it is a symbol of the question's own shard.
    """
    size, others = shards * keys, (shards - 1) * keys
    by_itself = Fraction(size - 2 * keys, others - 2) if shards > 2 else Fraction(0)
    right = Fraction(0)
    for chains in range(1, keys + 1):
        # Of the ways to place the symbols of the shard in the cycle, those in which they make so many chains.
        share = Fraction(size * comb(keys - 1, chains - 1) * comb(others - 1, chains - 1), chains * comb(size, keys))
        question_ends_a_chain = chains * (by_itself if chains == 1 else 1)
        right += share * (chains + question_ends_a_chain + others - chains) / size
    in_different_shards = Fraction(others, size - 1)
    return right / (others - 1) / in_different_shards


@dataclass(frozen=True)
class LookupItem(Item):
    """A question with its table."""

    shards: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.question} {self.shards}"

    def row(self, index: int, split: str) -> dict[str, object]:
        row = super().row(index, split)
        return row | {"extra_info": {"split": split, "index": index, SHARDS: CUT.join(self.shards)}}


def tasks(count: int, shards: int, keys: int, *, split: str, seed: int = 0) -> list[LookupItem]:
    """Random questions. The tables of the splits differ: there are too many for one to occur twice."""
    rng = random.Random(f"lookup {split} {seed}")
    drawn = [draw(shards, keys, rng) for _ in range(count)]
    return [LookupItem(asked, table.path(asked)[-1], SOURCE, table.shards) for table, asked in drawn]


def shuffled(items: Sequence[LookupItem]) -> list[LookupItem]:
    """The control: each question with the shards of the next one. What workers report is distributed as before, and
    says nothing of the question."""
    return [replace(item, source=SHUFFLED, shards=other.shards) for item, other in with_next(items)]


def shards_of(extra_info: DatasetFields) -> tuple[str, ...]:
    """The shards that a row of the data set has."""
    shards = tuple(str(extra_info.get(SHARDS) or "").split(CUT))
    if not all(shards):
        raise DataError(
            f"extra_info has no {SHARDS!r}",
            rule="a lookup workflow needs rows with the shards of a table",
            fix="create them with `verl-mas data lookup`",
        )
    return shards


def check_size(shards: int, keys: int) -> None:
    if shards < 2 or keys < 2 or shards * keys > len(SYMBOLS):
        raise ConfigError(
            f"--shards {shards} --keys {keys}",
            rule=f"a table has at least 2 shards of at least 2 keys, and each of its symbols is one of {len(SYMBOLS)}",
            fix="use --shards 4 --keys 8",
        )
