"""The exact success of the best agent that gets no messages, for tasks with split information, lookup and long lists.

A team whose messages help must be above this floor.
"""

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
    """Return the success of the best rule that reads only one part and the hint, and knows how often each letter is
    the answer."""
    right: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for task in tasks:
        for hint, probability in hints(task, decoys).items():
            right[task.parts[part], hint][task.answer] += probability
    total = sum(sum(shares.values()) for shares in right.values())
    return sum(max(shares.values()) for shares in right.values()) / total


def blind_bound(tasks: Iterable[PlanPath], moves: int, min_distance: int) -> float:
    """Return the expected share of boards on which the best driver without messages reaches the goal within `moves`. It
    knows the walls and the start but not the goal, and walks where a goal is most likely."""
    return fmean(_blind(task.board.layout, task.board.size, task.at, moves, min_distance) for task in tasks)


@cache
def _blind(layout: str, size: int, start: int, moves: int, min_distance: int) -> float:
    """Return the largest share of goals on one walk, each weighted by its probability in `PlanPath.generate`."""
    table = neighbours(size, frozenset(cell for cell, kind in enumerate(layout) if kind == WALL))
    likely: dict[int, float] = {}
    for goal in (cell for cell, kind in enumerate(layout) if kind != WALL):
        far = distances(goal, table)
        starts = [cell for cell, distance in enumerate(far) if distance is not None and distance >= min_distance]
        if start in starts:
            likely[goal] = 1 / len(starts)
    # All pairs (current cell, visited cells) that a walk can have after the moves so far.
    walks = {(start, frozenset([start]))}
    for _ in range(moves):
        walks = {(to, seen | {to}) for cell, seen in walks for to in table[cell].values()}
    return max(sum(likely.get(cell, 0.0) for cell in seen) for _, seen in walks) / sum(likely.values())


def floor_of_lookup(shards: int, keys: int) -> Fraction:
    """Return the exact share of questions that the best guess from the question and one shard answers. The shard cuts
    the cycle into chains; a symbol that the shard does not contain is a chain by itself. If the shard has the first
    step, the answer is the start of any other chain. Otherwise the best guess is the second symbol of any longer chain.
    If the only longer chain ends in the question, the best guess is a symbol of the question's own shard."""
    size, others = shards * keys, (shards - 1) * keys
    by_itself = Fraction(size - 2 * keys, others - 2) if shards > 2 else Fraction(0)
    right = Fraction(0)
    for chains in range(1, keys + 1):
        # The share of the placements of the shard's symbols in the cycle that result in this number of chains.
        share = Fraction(size * comb(keys - 1, chains - 1) * comb(others - 1, chains - 1), chains * comb(size, keys))
        question_ends_a_chain = chains * (by_itself if chains == 1 else 1)
        right += share * (chains + question_ends_a_chain + others - chains) / size
    in_different_shards = Fraction(others, size - 1)
    return right / (others - 1) / in_different_shards


def floor_of_list(length: int, window: int, fewest: int, letters: int) -> Fraction:
    """Return the exact share of lists whose largest letter the best guess from one window names. The largest letter has
    an index of at least `fewest` and a random position; the other letters are random smaller letters. The best guess is
    the largest letter in the window, or the next larger letter if that is more probable, for example because the
    largest letter in the window occurs twice."""
    right = Fraction(0)
    for seen in range(letters):
        windows, alone = (seen + 1) ** window - seen**window, window * seen ** (window - 1)
        here = Fraction(1, length * seen ** (window - 1)) if seen >= fewest else Fraction(0)
        larger = max(fewest, seen + 1)
        elsewhere = Fraction(length - window, length * larger**window) if larger < letters else Fraction(0)
        right += alone * max(here, elsewhere) + (windows - alone) * elsewhere
    return right / (letters - fewest)
