"""The exact success of the best agent without messages: the floors of split information, lookup and long lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from math import comb
from statistics import fmean

from verl_mas.config.hydra.recipe.split_clues.clues import Clues, Decoys, hints
from verl_mas.gym.puzzles.grid import WALL, neighbours
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath, distances


def floor(tasks: Iterable[Clues], part: int, decoys: Decoys = None) -> float:
    """The success of the best rule that reads one part and the hint: it knows how often each letter is right."""
    right: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for task in tasks:
        for hint, probability in hints(task, decoys).items():
            right[task.parts[part], hint][task.answer] += probability
    total = sum(sum(shares.values()) for shares in right.values())
    return sum(max(shares.values()) for shares in right.values()) / total


def blind_bound(tasks: Iterable[PlanPath], moves: int, min_distance: int) -> float:
    """The expected share of boards that a driver reaches the goal of within `moves`, if it knows walls and start and
    not the goal, and walks where goals are likely. No driver without messages is better."""
    return fmean(_blind(task.board.layout, task.board.size, task.at, moves, min_distance) for task in tasks)


@cache
def _blind(layout: str, size: int, start: int, moves: int, min_distance: int) -> float:
    """The largest share of goals on one walk, each as likely as `PlanPath.generate` makes it from this start."""
    table = neighbours(size, frozenset(cell for cell, kind in enumerate(layout) if kind == WALL))
    likely: dict[int, float] = {}
    for goal in (cell for cell, kind in enumerate(layout) if kind != WALL):
        far = distances(goal, table)
        starts = [cell for cell, distance in enumerate(far) if distance is not None and distance >= min_distance]
        if start in starts:
            likely[goal] = 1 / len(starts)
    # After each move, all pairs (cell, cells seen) that a walk can have.
    walks = {(start, frozenset([start]))}
    for _ in range(moves):
        walks = {(to, seen | {to}) for cell, seen in walks for to in table[cell].values()}
    return max(sum(likely.get(cell, 0.0) for cell in seen) for _, seen in walks) / sum(likely.values())


def floor_of_lookup(shards: int, keys: int) -> Fraction:
    """The share of questions that the best guess from the question and one shard gets right, exactly. The shard cuts
    the cycle into chains; a symbol that it says nothing of is a chain by itself. With the first step in the shard, the
    answer is the start of any other chain. Else the best guess is the second symbol of any longer chain. If the only
    one ends in the question, it is a symbol of the question's own shard."""
    size, others = shards * keys, (shards - 1) * keys
    by_itself = Fraction(size - 2 * keys, others - 2) if shards > 2 else Fraction(0)
    right = Fraction(0)
    for chains in range(1, keys + 1):
        # The share of placements of the shard's symbols in the cycle that make this many chains.
        share = Fraction(size * comb(keys - 1, chains - 1) * comb(others - 1, chains - 1), chains * comb(size, keys))
        question_ends_a_chain = chains * (by_itself if chains == 1 else 1)
        right += share * (chains + question_ends_a_chain + others - chains) / size
    in_different_shards = Fraction(others, size - 1)
    return right / (others - 1) / in_different_shards


def floor_of_list(length: int, window: int, fewest: int, letters: int) -> Fraction:
    """The share of lists whose largest letter the best guess from a window names, exactly. The largest letter is any
    from number `fewest` on, in any place, and the others are any below it. The best guess is the largest letter seen,
    or the next one if that is more probable, as where the largest letter seen is there twice."""
    right = Fraction(0)
    for seen in range(letters):
        windows, alone = (seen + 1) ** window - seen**window, window * seen ** (window - 1)
        here = Fraction(1, length * seen ** (window - 1)) if seen >= fewest else Fraction(0)
        larger = max(fewest, seen + 1)
        elsewhere = Fraction(length - window, length * larger**window) if larger < letters else Fraction(0)
        right += alone * max(here, elsewhere) + (windows - alone) * elsewhere
    return right / (letters - fewest)
