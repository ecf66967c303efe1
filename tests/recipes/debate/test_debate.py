"""Debaters that read each other, and the vote."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import box, play, prompts_of

from verl_mas.config.hydra.recipe.debate.team import Debate
from verl_mas.errors import ConfigError


def test_from_the_second_round_on_a_debater_reads_its_own_last_answer_and_those_of_the_others():
    _, llm = play(Debate(debaters=3, rounds=3), lambda request, _: f"{request.agent} says {request.turn + 1}")
    assert not any("says" in prompt for prompt in prompts_of(llm)[:3])
    for request, prompt in list(zip(llm.requests, prompts_of(llm), strict=True))[6:]:
        others = [f"debater_{other} says 2" for other in range(3) if other != int(request.agent[-1])]
        assert f"Your earlier solution:\n{request.agent} says 2" in prompt and "says 1" not in prompt
        assert [prompt.index(text) for text in others] == sorted(prompt.index(text) for text in others)


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
    session, _ = play(Debate(rounds=1), {f"debater_{number}": box(each) for number, each in enumerate(answers)})
    assert session.team_reward == reward and session.info["agreement"] == pytest.approx(agreement)
    assert session.answer == box(answers[answer])
    assert [reply.malformed is None for reply in session.replies] == [each != "$" for each in answers]


def test_the_last_round_counts_and_the_first_is_reported():
    replies = {f"debater_{number}": [box(3), box(0.5)] for number in range(3)}
    session, _ = play(Debate(), replies)
    assert session.team_reward == 1.0
    assert (session.info["right_first"], session.info["right_last"]) == (0.0, 1.0)


def test_a_judge_decides_in_place_of_the_majority():
    session, llm = play(Debate(judge=True), {"debater": box(3), "judge": box(0.5)})
    assert session.team_reward == 1.0 and session.info["majority"] == 0.0 and session.answer == box(0.5)
    assert "Solution 3:\nso" in prompts_of(llm, "judge")[0]


def test_an_act_earns_its_own_reward_for_a_right_answer_only_where_one_is_set():
    replies = {"debater_0": [box(0.5), box(3)], "debater_1": box(3), "debater_2": [box("$"), box(0.5)]}
    session, _ = play(Debate(answer_reward=0.4), replies)
    own = {(reply.agent, reply.turn): reply.reward for reply in session.replies}
    assert {act for act, reward in own.items() if reward == 0.4} == {("debater_0", 0), ("debater_2", 1)}
    assert sorted(own.values()) == [0.0] * 4 + [0.4] * 2
    assert {reply.reward for reply in play(Debate(), replies)[0].replies} == {None}


def test_with_influence_the_own_reward_is_that_of_maporl():
    """(v_ta + sum over later rounds of gamma^(t'-t) times the mean of all debaters) / (sum of gamma^(t'-t))"""
    right = [[1, 0], [0, 0], [1, 1]]  # [round][debater]
    replies = {f"debater_{number}": [box(0.5 if row[number] else 3) for row in right] for number in range(2)}
    session, _ = play(Debate(debaters=2, rounds=3, answer_reward=2.0, influence=0.3), replies)
    gamma, means = 0.3, [sum(row) / 2 for row in right]
    for reply in session.replies:
        turn, number = reply.turn, int(reply.agent[-1])
        later = [(gamma ** (other - turn), means[other]) for other in range(turn + 1, 3)]
        value = right[turn][number] + sum(weight * mean for weight, mean in later)
        assert reply.reward == pytest.approx(2.0 * value / (1 + sum(weight for weight, _ in later)))


def test_influence_needs_a_reward_of_answers():
    with pytest.raises(ConfigError, match=r"influence=0\.5 with answer_reward=0"):
        Debate(influence=0.5)
