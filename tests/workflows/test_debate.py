"""Debaters that read each other, and the vote."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

pytest.importorskip("math_verify")

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import ConfigError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.debate import Debate

TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="0.5")


def box(answer: object) -> str:
    return f"so \\boxed{{{answer}}}"


def play(replies, *, of: Task = TASK, latency: float = 0.0, **args):
    llm = ScriptedLLM(replies, latency=latency)
    return run(Debate(**args), of, llm, faults=FaultSpec(retries=0)), llm


def votes(*answers: object):
    return {f"debater_{number}": box(answer) for number, answer in enumerate(answers)}


def test_every_debater_answers_once_per_round_and_the_number_of_debaters_is_open():
    session, _ = play(box(0.5), debaters=5, rounds=3)
    assert Counter(reply.agent for reply in session.replies) == {f"debater_{number}": 3 for number in range(5)}
    assert {reply.role for reply in session.replies} == {"debater"}


def test_from_the_second_round_on_a_debater_reads_its_own_last_answer_and_those_of_the_others():
    said = Counter()

    def reply(request, _):
        said[request.agent] += 1
        return f"{request.agent} says {said[request.agent]}"

    _, llm = play(reply, debaters=3, rounds=3)
    first, third = llm.requests[:3], llm.requests[6:]
    assert not any("says" in str(request.messages) for request in first)
    for request in third:
        asked = request.messages[-1]["content"]
        number = int(request.agent[-1])
        others = [f"debater_{other} says 2" for other in range(3) if other != number]
        assert f"Your earlier solution:\n{request.agent} says 2" in asked
        assert [asked.index(text) for text in others] == sorted(asked.index(text) for text in others)
        assert "says 1" not in asked


class Slow(ScriptedLLM):
    """Some debaters answer late, so that the order of the answers differs from that of the questions."""

    def __init__(self, seconds):
        super().__init__(lambda request, _: f"{request.agent}: \\boxed{{0.5}}")
        self.seconds = seconds

    async def generate(self, request, n=1):
        await asyncio.sleep(self.seconds[request.agent])
        return await super().generate(request, n)


@pytest.mark.parametrize("seconds", [(0.02, 0.01, 0.0), (0.0, 0.02, 0.01)])
def test_the_turns_and_prompts_do_not_depend_on_who_answers_first(seconds):
    llm = Slow({f"debater_{number}": wait for number, wait in enumerate(seconds)})
    session = run(Debate(rounds=2), TASK, llm)
    turns = {(reply.agent, reply.turn, reply.instance) for reply in session.replies}
    assert turns == {(f"debater_{number}", turn, 0) for number in range(3) for turn in range(2)}
    by_agent = {reply.agent: reply.messages[-1]["content"] for reply in session.replies if reply.turn == 1}
    at_once, _ = play(lambda request, _: f"{request.agent}: \\boxed{{0.5}}")
    assert by_agent == {reply.agent: reply.messages[-1]["content"] for reply in at_once.replies if reply.turn == 1}


@pytest.mark.parametrize(
    ("answers", "reward", "agreement", "answer"),
    [
        ((0.5, 3, "\\frac{1}{2}"), 1.0, 2 / 3, 0),
        ((0.5, 3, "3.0"), 0.0, 2 / 3, 1),
        ((3, 0.5, 4), 0.0, 1 / 3, 0),
        ((0.5, 3, 4), 1.0, 1 / 3, 0),
        (("$", "$", 0.5), 1.0, 1 / 3, 2),
        (("$", "$", "$"), 0.0, 0.0, 0),
    ],
)
def test_the_majority_decides_and_of_equal_numbers_the_first_debater(answers, reward, agreement, answer):
    session, _ = play(votes(*answers), rounds=1)
    assert session.team_reward == reward and session.info["agreement"] == pytest.approx(agreement)
    assert session.answer == box(answers[answer])
    assert [reply.malformed is None for reply in session.replies] == [each != "$" for each in answers]


def test_the_last_round_counts_and_the_first_is_reported():
    replies = {f"debater_{number}": [box(3), box(0.5)] for number in range(3)}
    session, _ = play(replies)
    assert session.team_reward == 1.0
    assert (session.info["right_first"], session.info["right_last"]) == (0.0, 1.0)


def test_a_judge_decides_in_place_of_the_majority():
    session, llm = play({"debater": box(3), "judge": box(0.5)}, judge=True)
    assert session.team_reward == 1.0 and session.info["majority"] == 0.0 and session.answer == box(0.5)
    assert llm.requests[-1].agent == "judge" and "Solution 3:\nso" in llm.requests[-1].messages[-1]["content"]


def test_an_act_earns_its_own_reward_for_a_right_answer_only_where_one_is_set():
    replies = {"debater_0": [box(0.5), box(3)], "debater_1": box(3), "debater_2": [box("$"), box(0.5)]}
    own = {(reply.agent, reply.turn): reply.reward for reply in play(replies, answer_reward=0.4)[0].replies}
    assert own == {
        ("debater_0", 0): 0.4,
        ("debater_0", 1): 0.0,
        ("debater_1", 0): 0.0,
        ("debater_1", 1): 0.0,
        ("debater_2", 0): 0.0,
        ("debater_2", 1): 0.4,
    }
    assert {reply.reward for reply in play(replies)[0].replies} == {None}


def test_with_influence_the_own_reward_is_that_of_maporl():
    """(v_ta + sum over later rounds of gamma^(t'-t) times the mean of all debaters) / (sum of gamma^(t'-t))"""
    right = [[1, 0], [0, 0], [1, 1]]  # [round][debater]
    replies = {f"debater_{number}": [box(0.5 if row[number] else 3) for row in right] for number in range(2)}
    session, _ = play(replies, debaters=2, rounds=3, answer_reward=2.0, influence=0.3)
    gamma, means = 0.3, [sum(row) / 2 for row in right]
    for reply in session.replies:
        turn, number = reply.turn, int(reply.agent[-1])
        later = [(gamma ** (other - turn), means[other]) for other in range(turn + 1, 3)]
        value = right[turn][number] + sum(weight * mean for weight, mean in later)
        assert reply.reward == pytest.approx(2.0 * value / (1 + sum(weight for weight, _ in later)))


def test_influence_needs_a_reward_of_answers():
    with pytest.raises(ConfigError, match=r"influence=0\.5 with answer_reward=0"):
        Debate(influence=0.5)
