"""Chains of additions and subtractions, small enough for a tiny model on a laptop."""

from __future__ import annotations

import random
import re

from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.util.splits import TEST, TRAIN

# Repeats in a row after which no new chain is expected.
PATIENCE = 5_000


def draw(terms: int, largest: int, rng: random.Random) -> str:
    """A chain such as 3+5-2= with all intermediate results from 0 to `largest`."""
    total = rng.randint(0, largest)
    text = str(total)
    for _ in range(terms - 1):
        after = rng.randint(0, largest)
        text += f"{after - total:+d}"
        total = after
    # No words: every character is a token for a tiny model.
    return f"{text}="


def signed(chain: str) -> list[int]:
    """The numbers of a chain; their sum is its result."""
    return [int(number) for number in re.findall(r"[+-]?\d+", chain)]


def chain_split(chain: str) -> str:
    """One chain in five is for testing. Not by `splits.split_of`, since published results are on these chains."""
    return TEST if random.Random(f"split {chain}").randrange(5) == 0 else TRAIN


def chains(count: int, *, terms: int = 4, largest: int = 9, split: str = TRAIN, seed: int = 0) -> list[Item]:
    """Distinct chains. No chain is in both splits."""
    rng = random.Random(f"{split} {seed}")
    found: dict[str, Item] = {}
    repeats = 0
    while repeats < PATIENCE:
        repeats += 1
        chain = draw(terms, largest, rng)
        if chain not in found and chain_split(chain) == split:
            found[chain] = Item(chain, str(sum(signed(chain))), "arithmetic")
            repeats = 0
        if len(found) == count:
            return list(found.values())
    raise ConfigError(
        f"{count} chains of {terms} numbers up to {largest}",
        rule=f"there are only {len(found)} in {split!r} (train or test)",
        fix="use fewer rows, more terms or larger numbers",
    )
