"""Properties of every puzzle."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.puzzles.game import played, score_actions
from verl_mas.gym.puzzles.puzzle import board, board_of, row
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow.codecs import Malformed

KINDS = [
    ("plan_path", {"size": 4}),
    ("plan_path", {"size": 10, "walls": 0.3}),
    ("sokoban", {"size": 5, "min_distance": 2}),
    ("sokoban", {"size": 6, "boxes": 2}),
    ("sudoku", {"size": 4}),
    ("sudoku", {"size": 9, "blanks": 20}),
]
kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 300)
# There is no deadline, because a busy machine is not a failure.
relaxed = settings(deadline=None, max_examples=60)


def made(kind, seed: int):
    name, size = kind
    return board(name, seed, TRAIN, size)


def key(puzzle):
    """Key of a state: states of a board with equal keys are equal."""
    return str([getattr(puzzle, name, None) for name in ("at", "player", "boxes", "cells")])


def wander(puzzle, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        puzzle.step(rng.choice(puzzle.legal_actions()))


@relaxed
@given(kinds, seeds)
def test_the_same_seed_gives_the_same_board_and_a_plan_of_the_stated_length_solves_it(kind, seed):
    puzzle = made(kind, seed)
    assert puzzle.render() == made(kind, seed).render() and puzzle.initial_distance > 0
    for left in range(puzzle.initial_distance, 0, -1):
        assert puzzle.distance() == left and not puzzle.solved
        assert puzzle.step(puzzle.best_actions()[0])
    assert puzzle.solved and puzzle.value() == 1.0


@relaxed
@given(kinds, seeds, st.integers(0, 12), st.integers(0, 2**16))
def test_distance_drops_by_at_most_one_and_only_along_the_best_actions(kind, seed, steps, walk):
    puzzle = made(kind, seed)
    wander(puzzle, random.Random(walk), steps)
    here, best = puzzle.distance(), puzzle.best_actions()
    if here is None:
        assert not best
        return
    assert bool(best) == (here > 0)
    for action in puzzle.legal_actions():
        after = puzzle.copy()
        assert after.step(action)
        there = after.distance()
        assert (action in best) == (there == here - 1)
        assert there is None or there >= here - 1


@relaxed
@given(kinds, seeds, st.integers(0, 2**16))
def test_drawings_differ_exactly_as_states_do(kind, seed, walk):
    puzzle, rng = made(kind, seed), random.Random(walk)
    pictures, words = {}, {}
    for _ in range(30):
        for drawn, text in ((pictures, puzzle.render()), (words, puzzle.compact())):
            assert drawn.setdefault(text, key(puzzle)) == key(puzzle)
        if not puzzle.solved:
            wander(puzzle, rng, 1)
    assert len(pictures) == len(words) == len(set(pictures.values()))


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("plan_path", {"size": 4}, "#... ##.. .... .#.. Add Gcc ll .#.#"),
        ("sokoban", {"size": 5, "min_distance": 2}, "... #.. ... Acc Bcd Tbd mn lm ..#B"),
        ("sudoku", {"size": 4, "blanks": 4}, "aAOa bAOc cDOd dCOb"),
    ],
)
def test_a_tiny_model_reads_cells_places_offsets_and_what_is_around(name, size, text):
    assert board(name, 0, TRAIN, size).compact() == text


@pytest.mark.parametrize(("name", "size"), KINDS)
def test_train_and_test_layouts_never_overlap(name, size):
    train, test = ({layout_of(board(name, seed, split, size)) for seed in range(40)} for split in (TRAIN, TEST))
    assert not train & test and len(train) > 5 and len(test) > 5


def layout_of(puzzle):
    owner = getattr(puzzle, "board", None) or getattr(puzzle, "level", None)
    return owner.layout if owner else puzzle.sheet.solution


@relaxed
@given(kinds, seeds, st.integers(0, 2**16), st.integers(1, 4))
def test_returning_to_a_state_earns_nothing(kind, seed, walk, limit):
    """The sum of the rewards between two visits of an unsolved state is never positive."""
    puzzle, rng = made(kind, seed), random.Random(walk)
    earned, visits = 0.0, {key(puzzle): [0.0]}
    for _ in range(40):
        actions = some_act(puzzle, rng, limit)
        score = score_actions(puzzle, actions, limit=limit)
        if score.after.solved:
            continue
        puzzle, earned = score.after, earned + score.team + score.local
        for before in visits.setdefault(key(puzzle), []):
            assert earned <= before + 1e-9
        visits[key(puzzle)].append(earned)


def some_act(puzzle, rng, limit):
    if rng.random() < 0.1:
        return Malformed("noise")
    actions = [rng.choice(puzzle.legal_actions()) for _ in range(rng.randint(1, limit))]
    if rng.random() < 0.2:
        actions[0] = {"sudoku": "aA1"}.get(puzzle.name, "U")
    return actions


@relaxed
@given(kinds, seeds)
def test_solving_earns_the_team_one_and_ends_the_actions(kind, seed):
    puzzle = nearly_solved(made(kind, seed))
    actions = puzzle.best_actions()[:1] * 3
    score = score_actions(puzzle, actions, limit=3)
    assert score.after.solved and score.team == 1.0 and played(puzzle, actions, 3)[1] == 1.0
    assert not puzzle.solved


def nearly_solved(puzzle):
    while puzzle.distance() > 1:
        puzzle.step(puzzle.best_actions()[0])
    return puzzle


def test_the_board_of_a_dataset_row_is_restored():
    size = {"size": 5, "min_distance": 2}
    extra_info = row("sokoban", 7, TEST, size)["extra_info"]
    read = extra_info | {"size": extra_info["size"] | {"blanks": None}}
    expected = board("sokoban", 7, TEST, size).render()
    assert board_of(read).render() == expected
    # pandas reads integers as floats if rows of other puzzles lack the number.
    assert board_of(read | {"size": read["size"] | {"size": 5.0, "min_distance": 2.0}}).render() == expected
    with pytest.raises(DataError, match="seed"):
        board_of({"puzzle": "sokoban"})


@pytest.mark.parametrize(
    ("name", "split", "size", "says"),
    [
        ("plan_path", "valid", {}, "train, test"),
        ("plan_path", TRAIN, {"wall": 0.2}, "did you mean 'walls'"),
        ("plan_path", TRAIN, {"walls": 0.9}, "at least 0, below 0.6"),
        ("plan_path", TRAIN, {"size": 1}, "between 2 and 52"),
        ("plan_path", TRAIN, {"slip": 1.0}, "at least 0, below 1"),
        ("plan_path", TRAIN, {"size": 3, "min_distance": 30}, "smaller min_distance"),
        ("plan_path", TEST, {"walls": 0.0}, "change the share of walls"),
        ("sokoban", TRAIN, {"size": 12, "boxes": 4}, "at most 200000 states"),
        ("sokoban", TRAIN, {"size": 3}, "space for its boxes"),
        ("sokoban", TRAIN, {"size": 5, "min_distance": 99}, "smaller min_distance"),
        ("sudoku", TRAIN, {"size": 6}, "size 4 or 9"),
        ("sudoku", TRAIN, {"blanks": 0}, "use 1 to 15"),
        ("sokoban", TRAIN, {"min_distance": 0}, "at least 1"),
        ("plan_pth", TRAIN, {}, "did you mean 'plan_path'"),
    ],
)
def test_an_impossible_board_is_refused_with_the_fix(name, split, size, says):
    with pytest.raises(ConfigError, match=says):
        board(name, 0, split, size)
