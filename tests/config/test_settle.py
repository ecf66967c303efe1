import pytest
from omegaconf import OmegaConf

from verl_mas.config.settle import settle

ACTOR, SAMPLER = "actor_rollout_ref__actor__", "trainer__v1__sampler__"


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ({"algorithm__norm_adv_by_std_in_grpo": False}, {"mas.advantage.scale": "none"}),
        (
            {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"},
            {"actor_rollout_ref.actor.loss_scale_factor": 512},
        ),
        ({"algorithm__filter_groups__enable": True}, {"mas.filter.drop": "uniform", "mas.filter.refill": True}),
        (
            {"trainer__v1__trainer_mode": "separate_async", f"{SAMPLER}max_off_policy_threshold": 4},
            {"trainer.v1.trainer_mode": "mas_separate_async", "trainer.v1.sampler.max_off_policy_threshold": 4}
            | {"algorithm.rollout_correction.rollout_is": "token"},
        ),
        (
            {"algorithm__use_kl_in_reward": True, "algorithm__kl_ctrl__kl_coef": 0.01},
            {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.01},
        ),
        (
            {"actor_rollout_ref__rollout__agent__default_agent_loop": "tool_agent"},
            {"actor_rollout_ref.rollout.agent.default_agent_loop": "mas"},
        ),
    ],
)
def test_what_a_team_has_in_other_words_is_set_and_said_in_one_line(make, given, set_to):
    config = make(**given)
    (line,) = settle(config)
    assert {key: OmegaConf.select(config, key) for key in set_to} == set_to
    assert next(iter(given)).rpartition("__")[2].partition("=")[0] in line
    assert settle(config) == []


def test_a_sound_team_and_a_run_without_one_are_left_alone(make):
    assert settle(make()) == []
    assert settle(make(mas=None, algorithm__use_kl_in_reward=True)) == []
