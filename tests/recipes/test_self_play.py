"""The recipes of self-play: who is trained, and who is a snapshot."""

from __future__ import annotations

import pytest
from recipe_configs import composed

from verl_mas.config.load import load
from verl_mas.config.merge import snapshots, trained
from verl_mas.workflow.base import agents_of

ALONE = ("mas.workflow.args.opponent=self", "~mas.policies.past", "~mas.agents.opponent")


@pytest.mark.parametrize(
    ("arguments", "past"),
    [
        (("+recipe=self_play/laptop",), ["past"]),
        (("+recipe=self_play/qwen3",), ["past"]),
        (("+recipe=self_play/laptop", *ALONE), []),
        (("+recipe=self_play/qwen3_self",), []),
    ],
)
def test_the_learner_is_in_both_seats_and_its_opponent_is_a_snapshot(arguments, past):
    team = load(composed(arguments).mas)
    assert (trained(team), snapshots(team)) == (["main"], past)
    learns = {name: member.trainable for name, member in agents_of(team).items()}
    assert learns == {"first": True, "second": True} | ({"opponent": False} if past else {})


@pytest.mark.parametrize("recipe", ["laptop", "qwen3", "qwen3_self"])
def test_a_seat_has_a_running_baseline(recipe):
    config = composed([f"+recipe=self_play/{recipe}"])
    assert config.algorithm.adv_estimator == "agent_rae" and not config.mas.get("advantage")


def test_a_step_of_a_gpu_recipe_has_the_games_of_the_paper():
    config = composed(["+recipe=self_play/qwen3"])
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n == 128
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6 and not config.actor_rollout_ref.actor.use_kl_loss
