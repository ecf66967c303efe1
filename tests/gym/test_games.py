"""The games: their exact values, who knows what, and that an equilibrium cannot be exploited."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import product

import pytest

from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.games.base import GAMES, draw, expected, optimal, start_of, task_of, uniform
from verl_mas.gym.games.kinds.kuhn_poker import KuhnPoker
from verl_mas.gym.games.kinds.tic_tac_toe import TicTacToe

DEALS = [KuhnPoker.start(name) for name in KuhnPoker.starts()]


def states(game):
    """A state and all that can follow it."""
    yield game
    for action in game.actions():
        yield from states(game.after(action))


def value(players):
    """Of Kuhn poker, over all deals."""
    return sum(expected(deal, players) for deal in DEALS) / len(DEALS)


def test_kuhn_poker_is_worth_an_eighteenth_of_a_chip_to_the_second_player():
    assert len(DEALS) == 6
    assert value((optimal, optimal)) == pytest.approx(-1 / 18)


@pytest.mark.parametrize("player", [0, 1])
def test_no_deterministic_strategy_wins_more_than_the_value_against_the_equilibrium(player):
    seen = defaultdict(list)
    for state in (state for deal in DEALS for state in states(deal)):
        if state.actions() and state.player == player:
            seen[state.compact()] = list(state.actions())
    assert len(seen) == 6, "three cards, in two situations"
    best = -2.0
    for chosen in product(*seen.values()):
        plan = dict(zip(seen, chosen, strict=True))

        def planned(state, plan=plan):
            return {plan[state.compact()]: 1.0}

        players = (planned, optimal) if player == 0 else (optimal, planned)
        best = max(best, value(players) * (1 if player == 0 else -1))
    assert best == pytest.approx(-1 / 18 if player == 0 else 1 / 18)


def test_a_player_of_kuhn_poker_observes_its_own_card_only():
    for deal in DEALS:
        for state in states(deal):
            if state.actions():
                assert state.cards[1 - state.player] not in state.view() + state.compact()
                assert state.card in state.view() and state.card in state.compact()


def test_the_chips_of_kuhn_poker():
    deal = KuhnPoker.start("J K")
    ends = {"check check": -1, "bet fold": 1, "bet call": -2, "check bet fold": -1, "check bet call": -2}
    for history, chips in ends.items():
        state = deal
        for action in history.split():
            assert action in state.actions()
            state = state.after(action)
        assert not state.actions() and state.result() == chips


def test_tic_tac_toe_is_a_draw_and_its_first_player_has_an_advantage_of_three_tenths_at_random():
    empty = TicTacToe()
    assert expected(empty, (optimal, optimal)) == 0
    assert expected(empty, (uniform, uniform)) == pytest.approx(0.2968, abs=1e-4)
    assert expected(empty, (optimal, uniform)) > 0.9


def test_an_optimal_player_of_tic_tac_toe_never_loses():
    rng = random.Random(0)
    for seat in (0, 1, 0, 1):
        state = TicTacToe()
        while state.actions():
            state = state.after(draw(optimal if state.player == seat else uniform, state, rng))
        assert state.result() * (1 if seat == 0 else -1) >= 0


def test_both_players_of_tic_tac_toe_see_their_own_marks_alike():
    assert TicTacToe("X--------").compact() == "y - - - - - - - -"
    assert TicTacToe("XO-------").compact() == "m y - - - - - - -"
    assert TicTacToe("XO-------").view().endswith("X O 3\n4 5 6\n7 8 9")


@pytest.mark.parametrize("name", GAMES)
def test_every_start_is_a_question_and_has_a_move(name):
    kind = GAMES[name]
    questions = [task_of(name, start) for start in kind.starts()]
    assert len(set(questions)) == len(questions)
    for question in questions:
        state = start_of(question)
        assert state.name == name and state.actions()
        for strategy in (uniform, optimal):
            chances = strategy(state)
            assert sum(chances.values()) == pytest.approx(1) and set(chances) <= set(state.actions())


@pytest.mark.parametrize(
    ("question", "error"), [("chess", ConfigError), ("kuhn_poker J J", DataError), ("tic_tac_toe 5 5", DataError)]
)
def test_a_question_that_names_no_start_is_refused(question, error):
    with pytest.raises(error, match="rule: "):
        start_of(question)
