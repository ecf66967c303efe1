from __future__ import annotations

import re

import pytest

from verl_mas.checks.team import validate
from verl_mas.errors import ConfigError


def test_a_tensor_parallel_size_that_does_not_fit_is_corrected_by_the_fix_as_printed(refused):
    size = "actor_rollout_ref__rollout__tensor_model_parallel_size"
    common = refused(**{size: 2})
    assert "set actor_rollout_ref.rollout.tensor_model_parallel_size=1," in common[0].fix
    own = refused(mas__policies__b__overrides={"rollout": {"tensor_model_parallel_size": 4}})
    assert "set ++mas.policies.b.overrides.rollout.tensor_model_parallel_size=1," in own[0].fix
    assert not refused(**{size: 1})


def test_missing_gpus_and_missing_cpus_are_reported_together(refused):
    counts = {"ray_kwargs__ray_init__num_gpus": 1, "ray_kwargs__ray_init__num_cpus": 4}
    gpus, cpus = refused(mas__pools__shared={"n_gpus_per_node": 2}, **counts)
    assert "++ray_kwargs.ray_init.num_gpus=2" in gpus.fix
    assert "++ray_kwargs.ray_init.num_cpus=9" in cpus.fix


def test_engines_that_are_awake_together_share_the_memory(two):
    engine = {"actor_rollout_ref__rollout__name": "vllm", "actor_rollout_ref__rollout__gpu_memory_utilization": 0.6}
    with pytest.raises(ConfigError, match=re.escape("a 0.6 + b 0.6 = 1.2")):
        validate(two(**engine))
    key = "overrides.rollout.gpu_memory_utilization"
    fix = f"set ++mas.policies.a.{key}=0.5 ++mas.policies.b.{key}=0.5, or ++mas.pools.shared.serving=phases"
    with pytest.raises(ConfigError, match=re.escape(fix)):
        validate(two(**engine))
    time_sliced = {**engine, "mas__pools__shared": {"serving": "phases"}}
    with pytest.raises(ConfigError, match="free_cache_engine=False"):
        validate(two(**time_sliced))
    validate(two(**time_sliced, actor_rollout_ref__rollout__free_cache_engine=True))


def test_each_pool_needs_its_own_gpus(two):
    pools = {"mas__pools": {"fast": {"n_gpus_per_node": 1}}, "mas__policies__b__pool": "fast"}
    with pytest.raises(ConfigError, match="the team needs 2 GPUs, Ray has 1"):
        validate(two(**pools, ray_kwargs__ray_init__num_gpus=1))
    validate(two(**pools))
