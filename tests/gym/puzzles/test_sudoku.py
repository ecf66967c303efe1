import pytest

from verl_mas.gym.puzzles.kinds.sudoku import Sudoku, place, solved, unique


@pytest.mark.parametrize("size", [4, 9])
def test_there_is_exactly_one_solution(size):
    assert all(unique(Sudoku.generate(seed, size=size).cells, size) for seed in range(5))


def test_every_solution_is_found():
    assert len({tuple(grid) for grid in solved([0] * 16, 4)}) == 288 and not unique([0] * 16, 4)


def test_a_wrong_digit_can_be_replaced_and_a_printed_one_cannot():
    puzzle = Sudoku.generate(0)
    cell = puzzle.cells.index(0)
    name = place(cell, 4)
    right = puzzle.sheet.solution[cell]
    wrong = next(int(a[2]) for a in puzzle.legal_actions() if a[:2] == name and int(a[2]) != right)
    assert puzzle.step(f"{name}{wrong}") and puzzle.distance() == puzzle.initial_distance
    assert puzzle.step(f"{name}{right}") and puzzle.distance() == puzzle.initial_distance - 1
    printed = next(i for i, digits in enumerate(puzzle.sheet.allowed) if not digits)
    before = puzzle.render()
    for digit in range(1, 5):
        assert not puzzle.step(f"{place(printed, 4)}{digit}")
    assert not puzzle.step("iI9")
    assert puzzle.render() == before
