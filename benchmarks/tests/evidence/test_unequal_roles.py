"""Tests of rewards that differ by role. They are the same in all arms, but one arm sums them to a score per session."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run

PAIR = {"kind": "pair", "known": "Secret colour: blue", "own": "Secret thing: lamp", "answer": "blue lamp"}
OFFERS = {"kind": "offers", "known": "The customer likes red.", "own": "Offers: red hat, blue cup", "answer": "red hat"}


@pytest.fixture
def play(evidence):
    def once(scout, judge, secret=PAIR, validate=False, **args):
        task = Task([{"role": "user", "content": "?"}], extra_info=secret, validate=validate)
        team = evidence("unequal_roles").UnequalRoles(errs=0.0, **args)
        return run(team, task, ScriptedLLM({"scout": scout, "judge": judge}))

    return once


def rewards(session):
    return [session.team_reward, *(reply.reward for reply in session.replies)]


@pytest.mark.parametrize(
    ("secret", "args", "scout", "judge", "expected"),
    [
        # A scripted token is a byte, so "blue" has four tokens. Two are free, and each further token costs 1/8.
        (PAIR, {"pays": "scout"}, "blue", "blue lamp", [1.0, -0.25, 1.0]),
        (PAIR, {"pays": "scout", "rated": "both"}, "blue", "red lamp", [0.0, 0.75, 1.0]),
        (PAIR, {"pays": "scout", "rated": "both"}, "lamp", "a lamp of blue", [2 * 2 / 6, -0.25, 0.0]),
        (OFFERS, {"pays": "judge"}, "Red.", "red hat", [1.0, 1.0, -0.625]),
        (OFFERS, {"pays": "judge", "rated": "both"}, "Reds", "blue cup", [0.0, 0.0, 1 - 0.75]),
    ],
)
def test_one_agent_pays_and_the_other_is_rated(play, secret, args, scout, judge, expected):
    assert rewards(play(scout, judge, secret, **args)) == pytest.approx(expected)


def test_one_score_per_rollout_is_the_sum_of_what_the_agents_get(play):
    session = play("blue", "blue lamp", rollout=True)
    assert rewards(session) == [1.75, None, None] and session.info["whole"] == 1.75


def test_a_validation_is_scored_without_own_rewards(play):
    session = play("blue", "blue lamp", validate=True)
    assert rewards(session) == [1.0, None, None]
    assert session.info == {"acc": 1.0, "whole": 1.75, "length": 4.0}


def test_the_judge_alone_reads_what_the_scout_knows(play):
    session = play("", "blue lamp", alone=True)
    assert [reply.agent for reply in session.replies] == ["judge"] and rewards(session) == [1.0, 1.0]


def test_ratings_err_as_often_as_they_are_told_and_alike_each_time(evidence, play):
    module = evidence("unequal_roles")
    reply = play("blue", "blue lamp").replies[0]
    secrets = [module.Secret("pair", f"{n} blue", "Secret thing: lamp", "blue lamp") for n in range(200)]
    rated = [module.rating(reply, secret, 0.2) for secret in secrets]
    assert 0.7 < sum(rated) / 200 < 0.9 and rated == [module.rating(reply, secret, 0.2) for secret in secrets]


def test_what_is_offered_is_held_out_with_its_colour_and_in_three_colours(evidence):
    offers = evidence("offers").offers
    train, test = offers(200, "train", 0), offers(50, "test", 0)

    def asked(items):
        return {(item.extra["known"], item.truth) for item in items}

    assert not asked(train) & asked(test)
    for item in test:
        offers = item.extra["own"].removeprefix("Offers: ").split(", ")
        assert len({offer.split()[0] for offer in offers}) == 3 and item.truth in offers
        assert item.extra["known"] == f"The customer likes {item.truth.split()[0]}."


def test_verl_gives_a_rollout_the_advantages_of_the_arm_with_one_score():
    """verl's V1 trainer, to which Uni-MARL gives the rows of all policies, reads only a session's last score."""
    sums = [0.3, 1.75, -0.5, 1.75, 0.9, 0.25, 2.0, -1.0]
    sessions = [session for session in range(8) for _ in ("scout", "judge")]
    rewards = torch.tensor([[0.0] if number % 2 == 0 else [sums[number // 2]] for number in range(16)])
    data = DataProto.from_dict(
        {"token_level_rewards": rewards, "response_mask": torch.ones(16, 1)},
        {"uid": np.array(["task"] * 16, dtype=object)},
    )
    keys = [f"task_{session}_{number % 2}" for number, session in enumerate(sessions)]
    theirs = compute_advantage_for_multi_trajectories(data, keys, "grpo").batch["advantages"][:, 0]
    rows = AdvantageInput(
        torch.tensor([sums[session] for session in sessions]), ["task"] * 16, sessions, ["scout", "judge"] * 8
    )
    ours = compute_advantages("team_grpo", rows, AdvantageOptions(weighting="per_session")).advantages
    torch.testing.assert_close(ours.to(theirs), theirs, atol=1e-5, rtol=1e-5)
