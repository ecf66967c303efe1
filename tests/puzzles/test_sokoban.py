from __future__ import annotations

from collections import deque

import pytest

from verl_mas.puzzles.grid import neighbours
from verl_mas.puzzles.kinds.sokoban import Room, Sokoban, solve_backwards, words_of


def room(*rows: str) -> Sokoban:
    """A room as drawn."""
    text, size = "".join(rows), len(rows)
    walls = frozenset(i for i, sign in enumerate(text) if sign == "#")
    targets = frozenset(i for i, sign in enumerate(text) if sign in "Tab")
    moves = neighbours(size, walls)
    plain = text.replace("A", ".").replace("B", ".").replace("a", "T").replace("b", "T")
    to_go = solve_backwards(targets, moves)
    boxes = tuple(i for i, sign in enumerate(text) if sign in "Bb")
    player = next(i for i, sign in enumerate(text) if sign in "Aa")
    return Sokoban(Room(size, targets, moves, to_go, plain, words_of(size, plain)), player, boxes, 1)


def test_a_box_in_a_corner_is_a_deadlock():
    corner = room("#####", "#B.T#", "#.A.#", "#...#", "#####")
    assert corner.distance() is None and not corner.best_actions()


def test_a_push_moves_the_box_and_a_box_before_a_wall_or_a_box_does_not_move():
    puzzle = room("######", "#ABT.#", "#BB..#", "#....#", "#...T#", "######")
    assert puzzle.step("R") and puzzle.render().splitlines()[1] == "#.Ab.#"
    blocked = room("#####", "#AB##", "#...#", "#..T#", "#####")
    assert not blocked.step("R")
    row = room("######", "#ABB.#", "#....#", "#....#", "#TT..#", "######")
    assert not row.step("R")


def test_the_compact_text_has_walls_places_offsets_and_neighbours_a_word_each():
    puzzle = room("######", "#A.B.#", "#.#..#", "#BT.T#", "#....#", "######")
    assert puzzle.compact() == ".... .#.. .... .... Abb Bbd Bdb Tdc Tde mo ol om mn #.#."
    assert puzzle.step("R")
    assert puzzle.compact().split()[4:6] == ["Abc", "Bbd"] and puzzle.compact()[-4:] == "##.B"


def forward_distance(start: Sokoban) -> int | None:
    """Plain breadth-first search, playing forward."""
    seen, queue = {start.key()}, deque([(start, 0)])
    while queue:
        puzzle, length = queue.popleft()
        if puzzle.solved:
            return length
        for action in puzzle.legal_actions():
            after = puzzle.copy()
            after.step(action)
            if after.key() not in seen:
                seen.add(after.key())
                queue.append((after, length + 1))
    return None


@pytest.mark.parametrize("boxes", [1, 2])
def test_the_backward_table_agrees_with_forward_search_deadlocks_included(boxes):
    dead = 0
    for seed in range(6):
        puzzle = Sokoban.generate(seed, size=5, boxes=boxes, min_distance=2)
        for action in "UDLRRDLU" * 2:
            assert puzzle.distance() == forward_distance(puzzle)
            dead += puzzle.distance() is None
            puzzle.step(action)
    assert dead
