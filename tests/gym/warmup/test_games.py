"""Lessons in the rules of a game."""

from __future__ import annotations

from itertools import islice

import pytest

from verl_mas.gym.games.base import GAMES
from verl_mas.gym.games.kinds.tic_tac_toe import CELLS
from verl_mas.gym.self_play import lessons


def illegal(noise: float) -> float:
    """The share of the moves to a cell that is taken."""
    given = list(islice(lessons("tic_tac_toe", noise=noise), 2000))
    return sum(lesson.prompt.split()[CELLS.index(lesson.reply)] != "-" for lesson in given) / len(given)


def test_lessons_are_legal_but_for_the_noise():
    assert illegal(0.0) == 0
    assert 0.1 < illegal(0.5) < 0.4, "a random cell may be free"


@pytest.mark.parametrize("game", list(GAMES))
def test_lessons_repeat_with_their_seed(game):
    one, same, other = (list(islice(lessons(game, noise=0.2, seed=seed), 30)) for seed in (1, 1, 2))
    assert one == same != other
