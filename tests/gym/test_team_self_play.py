"""Self-play: who sits where, what each player gets, and illegal moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from verl_mas.gym.self_play import SelfPlay
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run


def task(question="tic_tac_toe", **fields):
    return replace(Task.of(question), **fields)


def legal(request, branch):
    """The first legal move of a prompt in words."""
    prompt = request.messages[-1]["content"]
    return f"<move>{prompt.partition('Legal moves: ')[2].partition(',')[0].split()[0]}</move>"


def agents(session):
    return [reply.agent for reply in session.replies]


def test_one_player_gets_what_the_other_loses():
    session = run(SelfPlay(), task(), ScriptedLLM(legal))
    # Cells 1 to 7 in turn: the first player has the diagonal 3, 5, 7.
    assert agents(session) == ["first", "second"] * 3 + ["first"]
    assert {reply.team_reward for reply in session.replies if reply.agent == "first"} == {1.0}
    assert {reply.team_reward for reply in session.replies if reply.agent == "second"} == {-1.0}
    assert session.answer == "tic_tac_toe: +1" and session.team_reward == 1.0


@pytest.mark.parametrize(("number", "seats"), [(0, {"first", "opponent"}), (1, {"opponent", "second"})])
def test_the_learner_changes_seats_and_the_reward_is_its_own(number, seats):
    session = run(SelfPlay(opponent="past"), task(session=number), ScriptedLLM(legal))
    assert set(agents(session)) == seats
    assert session.team_reward == (1.0 if number == 0 else -1.0)
    rewards = {reply.agent: reply.team_reward for reply in session.replies}
    assert sum(rewards.values()) == 0 and session.info["acc"] == float(number == 0)


@pytest.mark.parametrize("reply", ["<move>9</move><move>1</move>", "five", "<move>10</move>", ""])
def test_a_reply_without_a_legal_move_loses_the_game_for_its_player(reply):
    llm = ScriptedLLM({"first": "<move>5</move>", "second": reply})
    session = run(SelfPlay(), task(), llm)
    assert agents(session) == ["first", "second"]
    assert [reply.team_reward for reply in session.replies] == [1.0, -1.0]
    # Of the learner, which is in the first seat here.
    assert session.info["illegal"] == 0 and session.info["opponent_illegal"] == 1


def test_an_illegal_move_costs_the_largest_stake():
    session = run(SelfPlay(text="compact"), task("kuhn_poker J K"), ScriptedLLM("fold"))
    assert session.team_reward == -2 and session.info["illegal"] == 1


def test_validation_is_against_another_opponent_and_repeats_its_draws():
    workflow = SelfPlay(opponent="past", validation_opponent="random")
    one, other = (
        run(SelfPlay(opponent="past"), task(validate=True, uid=uid), ScriptedLLM(legal)) for uid in ("a", "b")
    )
    assert workflow.agents == ("first", "second", "opponent")
    assert set(agents(one)) == {"first"} and one.answer == other.answer
    assert [reply.messages for reply in one.replies] == [reply.messages for reply in other.replies]


def test_an_optimal_opponent_does_not_lose():
    for number in range(6):
        session = run(SelfPlay(opponent="optimal"), task(session=number, uid=str(number)), ScriptedLLM(legal))
        assert session.info["acc"] == 0


def test_a_session_draws_one_of_several_earlier_selves():
    workflow = SelfPlay(opponent="past", opponents=3)
    assert workflow.agents[2:] == ("opponent_0", "opponent_1", "opponent_2")
    drawn = Counter()
    for number in range(30):
        session = run(SelfPlay(opponent="past", opponents=3), task(uid=str(number)), ScriptedLLM(legal))
        (opponent,) = set(agents(session)) - {"first"}
        drawn[opponent] += 1
    assert set(drawn) == set(workflow.agents[2:])


def test_a_team_without_earlier_selves_has_no_agent_for_them():
    assert SelfPlay(opponent="random").agents == ("first", "second")
    assert SelfPlay(validation_opponent="past").agents == ("first", "second", "opponent")


@pytest.mark.parametrize("kind", [SelfPlay, lambda: SelfPlay(opponent="past"), lambda: SelfPlay(text="compact")])
def test_self_play_bears_every_reply(kind):
    report = check_workflow(kind, "<move>5</move>", task("tic_tac_toe 1"))
    assert report.ok, report
