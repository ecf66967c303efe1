from __future__ import annotations

import itertools
from functools import partial

import pytest

from verl_mas.errors import DataError
from verl_mas.gym.guide_driver import GUIDE, SHUFFLED, SMALL, blind_bound, boards_of, items, shuffled
from verl_mas.gym.puzzles.base import board, row
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath, distances
from verl_mas.util.splits import TEST, TRAIN


def read(item):
    return boards_of(item.row(0, TEST)["extra_info"])


def test_the_guide_sees_the_drivers_board_and_in_the_control_that_of_another_task():
    held_out = items(20, split=TEST)
    for item in held_out:
        puzzle, seen = read(item)
        assert (puzzle.board.layout, puzzle.board.goal) == (seen.board.layout, seen.board.goal)
    mixed = shuffled(held_out)
    assert {item.source for item in mixed} == {SHUFFLED}
    assert [read(item)[0].board.picture for item in mixed] == [read(item)[0].board.picture for item in held_out]
    assert [read(item)[1].board.picture for item in mixed] == [
        read(item)[0].board.picture for item in [*held_out[1:], held_out[0]]
    ]


def test_the_layouts_of_the_splits_are_disjoint_and_goals_are_at_least_three_moves_away():
    train, test = ([read(item)[0] for item in items(300, split=split)] for split in (TRAIN, TEST))
    assert not {one.board.layout for one in train} & {one.board.layout for one in test}
    assert min(one.initial_distance for one in (*train, *test)) == 3
    assert {one.board.layout.count("#") for one in train} == {3}


def open_board(start: int, goal: int) -> PlanPath:
    """Without walls."""
    puzzle = board("plan_path", 0, TRAIN, {"size": 2, "walls": 0, "min_distance": 1})
    assert isinstance(puzzle, PlanPath)
    puzzle.at = start
    assert puzzle.board.layout == "...."
    return puzzle


def test_the_bound_of_a_goal_blind_driver_is_known_on_a_board_of_four_cells():
    # Three goals, equally likely; a walk of one move visits one, of two moves two, and of three all.
    shares = [blind_bound([open_board(0, 3)], moves, min_distance=1) for moves in (1, 2, 3)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])
    # With distance 2 the goal is known.
    assert blind_bound([open_board(0, 3)], 2, min_distance=2) == 1


def test_the_bound_is_that_of_the_best_of_all_walks_with_goals_as_likely_as_boards_are_generated():
    for item in items(4, split=TEST):
        task, _ = read(item)
        board_ = task.board
        far = {goal: distances(goal, board_.moves) for goal in range(16) if board_.layout[goal] == "."}
        # A goal is drawn first, then one of the starts that are far enough.
        likely = {
            goal: 1 / sum(one is not None and one >= 3 for one in found)
            for goal, found in far.items()
            if (found[task.at] or 0) >= 3
        }
        found = []
        for walk in itertools.product("UDLR", repeat=5):
            cells = list(itertools.accumulate(walk, partial(_stepped, board_.moves), initial=task.at))
            found.append(sum(likely.get(cell, 0) for cell in set(cells)) / sum(likely.values()))
        assert blind_bound([task], 5, min_distance=3) == pytest.approx(max(found))


def _stepped(moves: tuple[dict[str, int], ...], at: int, move: str) -> int:
    return moves[at].get(move, at)


def test_the_bound_leaves_room_above_it():
    tasks = [read(item)[0] for item in items(60, split=TEST)]
    assert 0.55 < blind_bound(tasks, 6, min_distance=3) < 0.7


def test_rows_without_the_guides_board_are_refused_with_the_command():
    with pytest.raises(DataError, match="verl-mas data guide_driver"):
        boards_of(row("plan_path", 0, TEST, SMALL)["extra_info"])
    with pytest.raises(DataError, match="needs boards of plan_path"):
        boards_of({**row("sudoku", 0, TEST, {"size": 4, "blanks": 4})["extra_info"], GUIDE: 0})
