from __future__ import annotations

from verl_mas.gym.puzzles.grid import MOVES, NAMES, neighbours
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath, distances


def test_the_drawing_has_one_agent_one_goal_and_the_stated_walls():
    for seed in range(20):
        picture = PlanPath.generate(seed, size=10, walls=0.22).render()
        assert (picture.count("A"), picture.count("G"), picture.count("#")) == (1, 1, 22)
        assert [len(line) for line in picture.splitlines()] == [10] * 10


def test_walls_and_edges_stop_a_move():
    #  . #
    #  . .
    table = neighbours(2, frozenset({1}))
    assert table[0] == {"D": 2} and table[2] == {"U": 0, "R": 3} and table[1] == {}
    assert distances(3, table) == [2, None, 1, 0]


def test_an_illegal_move_changes_nothing():
    puzzle = PlanPath.generate(0, size=4)
    for move in (*MOVES, "X"):
        twin = puzzle.copy()
        assert twin.step(move) == (move in puzzle.legal_actions()) == (twin.render() != puzzle.render())


def test_the_compact_text_has_the_positions_of_walls_agent_and_goal_and_no_path():
    for seed in range(20):
        puzzle = PlanPath.generate(seed, size=4)
        for _ in range(puzzle.initial_distance):
            *rows, agent, goal, offset, sides = puzzle.compact().split(" ")
            assert "".join(rows) == puzzle.board.layout and [len(row) for row in rows] == [4] * 4
            assert [sign == "." for sign in sides] == [move in puzzle.legal_actions() for move in MOVES]
            at, to = (divmod(cell, 4) for cell in (puzzle.at, puzzle.board.goal))
            assert (agent, goal) == tuple(sign + NAMES[r] + NAMES[c] for sign, (r, c) in (("A", at), ("G", to)))
            assert [ord(sign) - ord("m") for sign in offset] == [to[0] - at[0], to[1] - at[1]]
            puzzle.step(puzzle.best_actions()[0])
        assert puzzle.compact().split(" ")[-2] == "mm"


def test_the_largest_grid_has_a_name_for_every_row():
    puzzle = PlanPath.generate(0, size=len(NAMES))
    puzzle.at = len(NAMES) ** 2 - 1
    assert "AZZ" in puzzle.compact()
