"""Plan-Path, also with moves that slip."""

import random
from collections import Counter

import pytest

from verl_mas.gym.puzzles.data import noisy_plan, tiny_workflow
from verl_mas.gym.puzzles.grid import MOVES, neighbours
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath
from verl_mas.gym.puzzles.puzzle import board
from verl_mas.util.splits import TRAIN


def test_walls_and_edges_stop_a_move():
    #  . #
    #  . .
    table = neighbours(2, frozenset({1}))
    assert table[0] == {"D": 2} and table[2] == {"U": 0, "R": 3} and table[1] == {}


def test_an_illegal_move_changes_nothing():
    puzzle = PlanPath.generate(0, size=4)
    for move in (*MOVES, "X"):
        twin = puzzle.copy()
        assert twin.step(move) == (move in puzzle.legal_actions()) == (twin.render() != puzzle.render())


SIZE = {"size": 4, "min_distance": 3}


def slippery(slip=0.4, seed=0):
    return board("plan_path", seed, TRAIN, SIZE | {"slip": slip})


def course(puzzle, moves):
    cells = []
    for move in moves:
        puzzle.step(move)
        cells.append(puzzle.at)
    return cells


@pytest.mark.parametrize("slip", [0.0, 0.4])
def test_a_move_slips_with_the_stated_probability_and_evenly_to_the_other_free_neighbours(slip):
    start = start_with(3, slip)
    move, *others = start.legal_actions()
    ends, rng = Counter(), random.Random(0)
    for _ in range(4000):
        twin = reseeded(start, rng)
        assert twin.step(move)
        ends[twin.at] += 1
    table = start.board.moves[start.at]
    assert ends[table[move]] / 4000 == pytest.approx(1 - slip, abs=0.03)
    assert [ends[table[other]] / 4000 for other in others] == pytest.approx([slip / 2] * 2, abs=0.03)


def test_where_there_is_no_other_free_neighbour_a_slip_stays_in_place():
    start = start_with(1, 0.9)
    ends = {tuple(course(reseeded(start, random.Random(seed)), start.legal_actions())) for seed in range(50)}
    assert ends == {(start.at,), tuple(start.board.moves[start.at].values())}


def start_with(exits, slip):
    """Find a board with this number of legal first moves."""
    return next(puzzle for seed in range(500) if len((puzzle := slippery(slip, seed)).legal_actions()) == exits)


def reseeded(puzzle, rng):
    twin = puzzle.copy()
    twin.reseed(rng)
    return twin


def test_a_copy_slips_as_its_original_does_and_a_reseeded_one_does_not():
    moves = random.Random(1).choices("UDLR", k=40)
    original = slippery()
    copied, other = original.copy(), reseeded(original, random.Random(5))
    assert course(copied, moves[:20]) == course(original, moves[:20])
    assert course(copied.copy(), moves[20:]) == course(original, moves[20:])
    assert course(slippery(), moves) != course(other, moves)
    # An illegal move samples no random number.
    wall = next(move for move in "UDLR" if move not in slippery().legal_actions())
    twin = slippery()
    assert not twin.step(wall) and course(twin, moves) == course(slippery(), moves)


def test_the_best_moves_and_the_distance_are_those_without_slips():
    for seed in range(10):
        firm, loose = slippery(0.0, seed), slippery(0.9, seed)
        assert firm.render() == loose.render()
        assert (loose.distance(), loose.best_actions()) == (firm.distance(), firm.best_actions())
        plan = noisy_plan(loose, 20, 0.0, random.Random(0))
        course(firm, plan)
        assert firm.solved and len(plan) == loose.initial_distance


def test_the_prompt_for_language_models_says_that_moves_slip():
    workflow = tiny_workflow("single_player", {"text": "words"})
    assert "With probability 0.4 a move slips" in workflow.prompt(slippery(0.4))
    assert "slip" not in workflow.prompt(slippery(0.0))
