"""Games, their starts as tasks, self-play, and lessons in the rules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import islice, permutations, product

import pytest
from played import played

from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.games.game import GAMES, STRATEGIES, expected, start_of, task_of, uniform
from verl_mas.gym.games.kinds.kuhn_poker import KuhnPoker
from verl_mas.gym.games.kinds.tic_tac_toe import CELLS, TicTacToe
from verl_mas.gym.self_play import SelfPlay, lessons, starts
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Task

optimal = STRATEGIES["optimal"]
DEALS = [KuhnPoker.start(name) for name in KuhnPoker.starts()]


def states(game):
    """A state and all that can follow it."""
    yield game
    for action in game.actions():
        yield from states(game.after(action))


def value(players):
    """Of Kuhn poker, over all deals."""
    return sum(expected(deal, players) for deal in DEALS) / len(DEALS)


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
    assert len(DEALS) == 6 and value((optimal, optimal)) == pytest.approx(-1 / 18)


def test_a_player_of_kuhn_poker_observes_its_own_card_only():
    for deal in DEALS:
        for state in states(deal):
            if state.actions():
                assert state.cards[1 - state.player] not in state.view() + state.compact()
                assert state.card in state.view() and state.card in state.compact()


def test_the_chips_of_kuhn_poker():
    ends = {"check check": -1, "bet fold": 1, "bet call": -2, "check bet fold": -1, "check bet call": -2}
    for history, chips in ends.items():
        state = KuhnPoker.start("J K")
        for action in history.split():
            assert action in state.actions()
            state = state.after(action)
        assert not state.actions() and state.result() == chips


def test_tic_tac_toe_is_a_draw_and_its_first_player_has_an_advantage_of_three_tenths_at_random():
    empty = TicTacToe()
    assert expected(empty, (optimal, optimal)) == 0
    assert expected(empty, (uniform, uniform)) == pytest.approx(0.2968, abs=1e-4)
    assert expected(empty, (optimal, uniform)) > 0.9


def test_both_players_of_tic_tac_toe_see_their_own_marks_alike():
    assert TicTacToe("X--------").compact() == "y - - - - - - - -"
    assert TicTacToe("XO-------").compact() == "m y - - - - - - -"
    assert TicTacToe("XO-------").view().endswith("X O 3\n4 5 6\n7 8 9")


@pytest.mark.parametrize("name", list(GAMES))
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


def questions(game, split):
    return {item.question for item in starts(game, split)}


def test_every_opening_is_for_training_or_for_testing():
    train, test = (questions("tic_tac_toe", split) for split in (TRAIN, TEST))
    assert not train & test and len(train | test) == len(GAMES["tic_tac_toe"].starts()) == 82 and len(test) > 10


def test_every_deal_is_for_both():
    assert questions("kuhn_poker", TRAIN) == questions("kuhn_poker", TEST)
    assert {start_of(question).cards for question in questions("kuhn_poker", TEST)} == set(permutations("JQK", 2))


def task(question="tic_tac_toe", **fields):
    return replace(Task.of(question), **fields)


def legal(request, branch):
    """The first legal move of a prompt in words."""
    prompt = request.messages[-1]["content"]
    return f"<move>{prompt.partition('Legal moves: ')[2].partition(',')[0].split()[0]}</move>"


def play(workflow, task, replies=legal):
    """The session, and the agent of each of its acts."""
    session, _ = played(workflow, task, replies)
    return session, [reply.agent for reply in session.replies]


def test_one_player_gets_what_the_other_loses():
    session, agents = play(SelfPlay(), task())
    # Cells 1 to 7 in turn: the first player has the diagonal 3, 5, 7.
    assert agents == ["first", "second"] * 3 + ["first"]
    assert {(reply.agent, reply.team_reward) for reply in session.replies} == {("first", 1.0), ("second", -1.0)}
    assert session.answer == "tic_tac_toe: +1" and session.team_reward == 1.0


@pytest.mark.parametrize(("number", "seats"), [(0, {"first", "opponent"}), (1, {"opponent", "second"})])
def test_the_learner_changes_seats_and_the_reward_is_its_own(number, seats):
    session, agents = play(SelfPlay(opponent="past"), task(session=number))
    assert set(agents) == seats and session.team_reward == (1.0 if number == 0 else -1.0)
    rewards = {reply.agent: reply.team_reward for reply in session.replies}
    assert sum(rewards.values()) == 0 and session.info["acc"] == float(number == 0)


@pytest.mark.parametrize("reply", ["<move>9</move><move>1</move>", "five", "<move>10</move>", ""])
def test_a_reply_without_a_legal_move_loses_the_game_for_its_player(reply):
    session, agents = play(SelfPlay(), task(), {"first": "<move>5</move>", "second": reply})
    assert agents == ["first", "second"]
    assert [reply.team_reward for reply in session.replies] == [1.0, -1.0]
    # Of the learner, which is in the first seat here.
    assert session.info["illegal"] == 0 and session.info["opponent_illegal"] == 1


def test_an_illegal_move_costs_the_largest_stake():
    session, _ = play(SelfPlay(text="compact"), task("kuhn_poker J K"), "fold")
    assert session.team_reward == -2 and session.info["illegal"] == 1


def test_validation_is_against_another_opponent_and_repeats_its_draws():
    workflow = SelfPlay(opponent="past", validation_opponent="random")
    (one, agents), (other, _) = (play(workflow, task(validate=True, uid=uid)) for uid in ("a", "b"))
    assert set(agents) == {"first"} and one.answer == other.answer
    assert [reply.messages for reply in one.replies] == [reply.messages for reply in other.replies]


def test_an_optimal_opponent_does_not_lose():
    for number in range(6):
        session, _ = play(SelfPlay(opponent="optimal"), task(session=number, uid=str(number)))
        assert session.info["acc"] == 0


def test_a_session_draws_one_of_several_earlier_selves():
    workflow = SelfPlay(opponent="past", opponents=3)
    opponents = {"opponent_0", "opponent_1", "opponent_2"}
    assert set(workflow.agents) == {"first", "second"} | opponents
    drawn = [set(play(workflow, task(uid=str(number)))[1]) - {"first"} for number in range(30)]
    assert all(len(each) == 1 for each in drawn) and set.union(*drawn) == opponents


@pytest.mark.parametrize(
    ("arguments", "past"),
    [
        ({"opponent": "random"}, ()),
        ({"validation_opponent": "past"}, ("opponent",)),
        ({"opponent": "past"}, ("opponent",)),
    ],
)
def test_a_team_has_an_agent_for_earlier_selves_where_they_play(arguments, past):
    assert SelfPlay(**arguments).agents == ("first", "second", *past)


# At 0.5 a random cell may be free.
@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0, 0), (0.5, 0.1, 0.4)])
def test_lessons_are_legal_but_for_the_noise(noise, least, most):
    moves = islice(lessons("tic_tac_toe", noise=noise), 2000)
    taken = sum(lesson.prompt.split()[CELLS.index(lesson.reply)] != "-" for lesson in moves)
    assert least <= taken / 2000 <= most
