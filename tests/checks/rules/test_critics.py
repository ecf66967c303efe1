"""Settings that are refused with `algorithm.adv_estimator=gae`: for each, all rules together give one error."""

import pytest
import torch
from transformers import AutoConfig
from verl.utils.model import load_valuehead_model

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.engines.serving import resolve_serving
from verl_mas.errors import ConfigError

GAE, GRPO = ({"algorithm__adv_estimator": name} for name in ("gae", "agent_grpo"))
WAIT = {"trainer__v1__trainer_mode": "mas_colocate_async", "trainer__v1__sampler__max_off_policy_strategy": "wait"}
STALE = {"trainer__v1__sampler__max_off_policy_threshold": 2, "algorithm__rollout_correction__rollout_is": "token"}
ON_A = {"mas__agents": {"solver": {"policy": "a"}, "verifier": {"policy": "a"}}}
ADAPTER = {"mas__policies": {"main": {"trainable": False}, "a": {"adapter_of": "main"}}, **ON_A}
REFUSED = {
    "mas.advantage.scale=none with gae": {"mas__advantage": {"scale": "none"}},
    "mas.skip_zero_advantage=True with gae": {"mas__skip_zero_advantage": True},
    "mas.policies.a.adapter_of=main with gae": ADAPTER,
    "critic.model.lora_rank=8 with gae": {"critic__model__lora_rank": 8},
    "critic.enable=False with gae": {"critic__enable": False},
    "critic.ppo_mini_batch_size=3 with actor_rollout_ref": {"critic__ppo_mini_batch_size": 3},
    "critic.fsdp.ulysses_sequence_parallel_size=2": {"critic__fsdp__ulysses_sequence_parallel_size": 2},
    "critic.ppo_infer_max_token_len_per_gpu=100": {"critic__ppo_infer_max_token_len_per_gpu": 100},
    "trainer.v1.trainer_mode=mas_colocate_async with gae": {**WAIT, **STALE},
    "mas.filter.drop=uniform with algorithm.adv_estimator=gae": {"mas__filter": {"drop": "uniform"}},
    "critic.enable=True with algorithm.adv_estimator=agent_grpo": {"critic__enable": True, **GRPO},
    "trainer.critic_warmup=5": {"trainer__critic_warmup": 5, **GRPO},
}


@pytest.mark.parametrize("value", REFUSED)
def test_what_has_no_meaning_with_critics_or_without_them_is_one_error(make, value):
    run = resolve_serving(ExaminedRun.of(make(**(GAE | REFUSED[value]))))
    problems = [one for rule in every_rule().values() if not rule.here for one in rule.problems(run)]
    (error,) = (one for one in problems if isinstance(one, ConfigError))
    assert error.value.startswith(value)


def test_verl_has_no_critic_of_a_model_that_reads_images_without_trl(tmp_path):
    with pytest.raises(RuntimeError, match="please install trl") as refused:
        load_valuehead_model(str(tmp_path), torch.float32, AutoConfig.for_model("qwen2_5_vl"), False)
    assert "Unrecognized configuration class" in str(refused.value.__cause__)
