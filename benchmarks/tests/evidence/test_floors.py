"""Tests of the floors. A floor is the highest success without communication, in a task that measures communication."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import pytest

from benchmarks.evidence.floors import blind_bound, floor, floor_of_list, floor_of_lookup
from benchmarks.evidence.tasks import recursion
from verl_mas.config.hydra.recipe.guide_driver import team as guide_driver
from verl_mas.config.hydra.recipe.guide_driver.team import boards_of
from verl_mas.config.hydra.recipe.split_clues.clues import Clues, clues
from verl_mas.config.user_code import load_module
from verl_mas.gym.puzzles.kinds.plan_path import distances
from verl_mas.util.splits import TEST, TRAIN


@pytest.mark.parametrize(("parts", "left"), [(2, 3), (3, 3), (4, 4)])
@pytest.mark.parametrize("split", [TRAIN, TEST])
def test_one_part_alone_is_right_with_one_over_its_letters(parts, left, split):
    tasks = list(clues(split, parts))
    assert [floor(tasks, part) for part in range(parts)] == [pytest.approx(1 / left, abs=1e-12)] * parts


def test_a_rule_that_reads_all_clues_is_always_right():
    whole = [Clues(task.answer, (" ".join(task.parts),)) for task in clues(TEST)]
    assert floor(whole, 0) == 1


def test_a_hint_moves_the_floor_by_what_it_says():
    held_out = list(clues(TEST))
    # The hint is always wrong. In half of the tasks, it names one of the three letters that the part leaves possible,
    # so two letters are left to guess from. In the other half, three letters are left.
    assert floor(held_out, 0, decoys=1.0) == pytest.approx(5 / 12, abs=1e-12)
    assert floor(held_out, 1, decoys=0.0) == 1
    # If the hint names one of these three letters, the best guess is the hint, which is right in 0.4 of all tasks. In
    # 0.3 of all tasks, it names another letter, and a guess among the three letters is right with probability 1/3.
    assert floor(held_out, 0, decoys=0.6) == pytest.approx(0.4 + 0.3 / 3, abs=1e-12)


def boards(count: int) -> list:
    return [boards_of(item.row(0, TEST)["extra_info"])[0] for item in guide_driver.items(count, split=TEST)]


def test_the_bound_is_that_of_the_best_of_all_walks_with_goals_as_likely_as_boards_are_generated():
    for task in boards(4):
        board_ = task.board
        far = {goal: distances(goal, board_.moves) for goal in range(16) if board_.layout[goal] == "."}
        # The generator samples a goal first, then one of the starts that are far enough from it.
        likely = {
            goal: 1 / sum(one is not None and one >= 3 for one in lengths)
            for goal, lengths in far.items()
            if (lengths[task.at] or 0) >= 3
        }
        shares = []
        for walk in itertools.product("UDLR", repeat=5):
            cells = {at := task.at, *(at := board_.moves[at].get(move, at) for move in walk)}
            shares.append(sum(likely.get(cell, 0) for cell in cells) / sum(likely.values()))
        assert blind_bound([task], 5, min_distance=3) == pytest.approx(max(shares))


def test_the_bound_leaves_room_above_it():
    assert 0.55 < blind_bound(boards(60), 6, min_distance=3) < 0.7


@pytest.mark.parametrize(("shards", "keys"), [(3, 2), (2, 3)])
def test_the_floor_of_lookup_is_the_success_of_the_best_guess_from_one_shard(shards, keys):
    """Enumerate all cycles and questions. The best guess for a question and a shard is their most frequent answer."""
    symbols = range(shards * keys)
    answers: dict[object, Counter[int]] = defaultdict(Counter)
    for order in itertools.permutations(symbols[1:]):
        cycle = (0, *order)
        following = dict(zip(cycle, (*order, 0), strict=True))
        for asked in symbols:
            first = following[asked]
            if asked // keys != first // keys:
                shard = tuple(following[symbol] for symbol in symbols[:keys])
                answers[asked, shard][following[first]] += 1
    best, every = (sum(map(of, answers.values())) for of in (lambda seen: max(seen.values()), Counter.total))
    assert floor_of_lookup(shards, keys) == Fraction(best, every)


@pytest.mark.parametrize(("length", "window", "fewest", "letters"), [(4, 2, 2, 5), (4, 3, 1, 4), (3, 3, 1, 4)])
def test_the_best_reader_of_a_window_of_a_list(length, window, fewest, letters):
    seen = defaultdict(lambda: defaultdict(Fraction))
    for largest, place in itertools.product(range(fewest, letters), range(length)):
        for others in itertools.product(range(largest), repeat=length - 1):
            whole = (*others[:place], largest, *others[place:])
            seen[whole[:window]][largest] += Fraction(1, (letters - fewest) * length * largest ** (length - 1))
    best = sum(max(shares.values()) for shares in seen.values())
    assert floor_of_list(length, window, fewest, letters) == best


def test_the_floor_of_a_list_is_that_of_the_evidence():
    task = load_module(str(recursion.HERE), "the task of recursion")
    window, letters = task.WINDOW, len(task.LETTERS)
    assert pytest.approx(float(floor_of_list(4 * window, window, window, letters)), abs=1e-3) == recursion.FLOOR
