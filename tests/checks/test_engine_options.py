from __future__ import annotations

from verl_mas.checks.policies import check_unread_options
from verl_mas.checks.trainer import check_together
from verl_mas.config.run import Run

ROLLOUT = "actor_rollout_ref__rollout__"


def test_an_option_that_replaces_a_setting_of_verl_is_refused_unless_it_is_equal(make):
    def found(value):
        options = {"vllm": {"gpu_memory_utilization": value, "kv_cache_dtype": "fp8"}}
        given = {"name": "vllm", "gpu_memory_utilization": 0.4, "engine_kwargs": options}
        return list(check_together(Run.of(make(**{ROLLOUT + key: item for key, item in given.items()}))))

    assert not found(0.4)
    (error,) = found(0.9)
    assert error.fix.startswith("set actor_rollout_ref.rollout.gpu_memory_utilization=0.9")


def test_options_of_an_engine_that_is_not_used_are_warned_of_unless_that_in_use_has_some(make):
    def found(**options):
        config = make(**{ROLLOUT + "name": "vllm", ROLLOUT + "engine_kwargs": options})
        return list(check_unread_options(Run.of(config)))

    assert len(found(sglang={"attention_backend": "triton"})) == 1
    assert not found(sglang={"attention_backend": "triton"}, vllm={"kv_cache_dtype": "fp8"})
    assert not found(vllm={}, sglang={})
