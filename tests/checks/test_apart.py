"""Policies that are trained on one pool and served on another."""

from __future__ import annotations

from verl_mas.checks.team import validate

SEPARATE = {
    "trainer__v1__trainer_mode": "mas_separate_async",
    "trainer__v1__separate_async__parameter_sync_step": 1,
    "algorithm__rollout_correction__rollout_is": "token",
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "ray",
    "mas__pools": {"left": {}, "right": {}, "serve": {}},
    "mas__policies__a": {"pool": "left", "engines": "serve"},
    "mas__policies__b": {"pool": "right", "engines": "serve"},
}
ONE = {"mas__pools": {"left": {}, "serve": {}}}


def test_two_trainer_pools_and_one_serving_pool_are_accepted(two):
    assert validate(two(**SEPARATE)).policies["a"].engines == "serve"


def test_a_frozen_policy_may_be_on_the_serving_pool(two):
    frozen = {"mas__policies__b": {"trainable": False, "pool": "serve"}}
    assert validate(two(**{**SEPARATE, **frozen, **ONE})).policies["b"].pool == "serve"


def test_without_a_pool_that_is_named_one_serves_all_policies(two):
    mode = {name: value for name, value in SEPARATE.items() if not name.startswith("mas__")}
    frozen = {"mas__policies": {"a": {}, "b": {"trainable": False}}}
    mas = validate(two(**mode, **frozen))
    assert (mas.policies["a"].pool, mas.policies["a"].engines, mas.policies["b"].pool) == ("shared", "serve", "serve")


def test_replicas_that_divide_the_gpus_of_a_pool_and_take_turns_are_accepted(two):
    engine = {"name": "vllm", "tensor_model_parallel_size": 2, "gpu_memory_utilization": 0.6, "free_cache_engine": True}
    pool = {"n_gpus_per_node": 4, "serving": "phases"}
    settings = {f"actor_rollout_ref__rollout__{key}": value for key, value in engine.items()}
    validate(two(mas__pools__shared=pool, ray_kwargs__ray_init__num_gpus=4, **settings))
