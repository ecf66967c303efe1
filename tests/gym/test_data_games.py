"""The starts of games as tasks."""

from __future__ import annotations

from verl_mas.gym.games.base import GAMES, start_of
from verl_mas.gym.self_play import starts
from verl_mas.util.splits import TEST, TRAIN


def questions(game, split):
    return {item.question for item in starts(game, split)}


def test_every_opening_is_for_training_or_for_testing():
    train, test = (questions("tic_tac_toe", split) for split in (TRAIN, TEST))
    assert not train & test and len(train | test) == len(GAMES["tic_tac_toe"].starts()) == 82
    assert len(test) > 10


def test_every_deal_is_for_both():
    assert questions("kuhn_poker", TRAIN) == questions("kuhn_poker", TEST)
    assert {start_of(question).cards for question in questions("kuhn_poker", TEST)} == {
        ("J", "Q"), ("J", "K"), ("Q", "J"), ("Q", "K"), ("K", "J"), ("K", "Q")
    }  # fmt: skip
