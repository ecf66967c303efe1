from collections import deque

import pytest

from verl_mas.gym.puzzles.grid import neighbours
from verl_mas.gym.puzzles.kinds.sokoban import Level, Sokoban, solve_backwards


def level(*rows: str) -> Sokoban:
    """Make the level of a drawing."""
    text, size = "".join(rows), len(rows)
    walls, targets, boxes, [player] = (
        [cell for cell, sign in enumerate(text) if sign in signs] for signs in ("#", "Tab", "Bb", "Aa")
    )
    moves = neighbours(size, frozenset(walls))
    plain = text.translate(str.maketrans("ABab", "..TT"))
    distances = solve_backwards(frozenset(targets), moves)
    of_targets = Level(size, frozenset(targets), moves, distances, plain)
    return Sokoban(of_targets, player, tuple(boxes), 1)


def test_a_push_moves_a_box_unless_a_wall_or_a_box_is_behind_it():
    puzzle = level("######", "#ABT.#", "#BB..#", "#....#", "#...T#", "######")
    assert puzzle.step("R") and puzzle.render().splitlines()[1] == "#.Ab.#"
    blocked = level("#####", "#AB##", "#...#", "#..T#", "#####")
    assert not blocked.step("R")
    row = level("######", "#ABB.#", "#....#", "#....#", "#TT..#", "######")
    assert not row.step("R")


def forward_distance(start: Sokoban) -> int | None:
    """Breadth-first search forwards."""
    seen, queue = {(start.player, start.boxes)}, deque([(start, 0)])
    while queue:
        puzzle, length = queue.popleft()
        if puzzle.solved:
            return length
        for action in puzzle.legal_actions():
            after = puzzle.copy()
            after.step(action)
            if (after.player, after.boxes) not in seen:
                seen.add((after.player, after.boxes))
                queue.append((after, length + 1))
    return None


@pytest.mark.parametrize("boxes", [1, 2])
def test_the_backward_search_agrees_with_a_forward_search_also_on_deadlocks(boxes):
    dead = 0
    for seed in range(6):
        puzzle = Sokoban.generate(seed, size=5, boxes=boxes, min_distance=2)
        for action in "UDLRRDLU" * 2:
            assert puzzle.distance() == forward_distance(puzzle)
            dead += puzzle.distance() is None
            puzzle.step(action)
    assert dead
