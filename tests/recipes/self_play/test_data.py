"""Lessons in the rules of a world, and its episodes as rows."""

from itertools import islice

import pytest
from toy_worlds import TOY

from verl_mas.config.hydra.recipe.self_play.data import lessons
from verl_mas.errors import DataError

CELLS = "012345678"


# With noise 0.5, less than half of the moves are illegal, because a random cell may be free.
@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0, 0), (0.5, 0.1, 0.4)])
def test_lessons_are_legal_but_for_the_noise(noise, least, most):
    pytest.importorskip("pyspiel")
    moves = list(islice(lessons("open_spiel/tic_tac_toe", {"opening": 2}, noise=noise), 2000))
    taken = sum(lesson.prompt.split()[1:][CELLS.index(lesson.reply)] != "." for lesson in moves)
    assert least <= taken / 2000 <= most
    assert {(lesson.agent, lesson.prompt[0]) for lesson in moves} == {("player_0", "0"), ("player_1", "1")}


def test_a_world_without_a_list_of_actions_has_no_lessons():
    with pytest.raises(DataError, match="lists its legal actions"):
        next(lessons(f"{TOY}/free", {}, noise=0.1))
