"""Measure the time to generate a board, to step and draw it, and to copy it: `python benchmarks/puzzles.py`."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from itertools import count, cycle

from verl_mas.gym.puzzles.puzzle import Puzzle, board
from verl_mas.util.splits import TRAIN

BOARDS = [
    ("plan_path", {"size": 10}),
    ("sokoban", {"size": 6}),
    ("sokoban", {"size": 10, "boxes": 1}),
    ("sokoban", {"size": 6, "boxes": 2}),
    ("sudoku", {"size": 4}),
    ("sudoku", {"size": 9}),
]
BUDGET_US = {"step and draw": 20.0, "copy": 10.0}


def microseconds(call: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def step_and_draw(puzzle: Puzzle) -> Callable[[], None]:
    actions = cycle(puzzle.legal_actions())

    def call() -> None:
        puzzle.step(next(actions))
        puzzle.render()

    return call


def main() -> None:
    print(f"{'board':32} {'generate us':>11} {'step and draw us':>17} {'copy us':>8}   share of the budget")
    for name, size in BOARDS:
        seeds = count()
        make = microseconds(lambda n=name, s=size, i=seeds: board(n, next(i), TRAIN, s), 20)
        puzzle = board(name, 0, TRAIN, size)
        acting = microseconds(step_and_draw(puzzle), 5000)
        copying = microseconds(puzzle.copy, 5000)
        shares = f"{acting / BUDGET_US['step and draw']:.3f} {copying / BUDGET_US['copy']:.3f}"
        print(f"{name + ' ' + str(size):32} {make:11.0f} {acting:17.2f} {copying:8.2f}   {shares}")


if __name__ == "__main__":
    main()
