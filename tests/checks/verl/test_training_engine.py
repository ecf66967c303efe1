from __future__ import annotations

import pytest

from verl_mas.checks.verl.training_engine import check_heads, check_sharding

QWEN = {"actor_rollout_ref__model__path": "Qwen/Qwen2.5-7B-Instruct", "actor_rollout_ref__rollout__name": "vllm"}


@pytest.mark.parametrize(("parts", "errors"), [(1, 0), (2, 0), (4, 0), (7, 1), (8, 1)])
def test_tensor_parallel_size_divides_the_heads_and_those_of_keys_and_values(make, parts, errors):
    view = make(**QWEN, actor_rollout_ref__rollout__tensor_model_parallel_size=parts)
    found = list(check_heads(view, "main"))
    assert len(found) == errors
    assert all("28 attention heads" in error.rule and "4 heads of keys" in error.rule for error in found)


@pytest.mark.parametrize(
    ("key", "size", "errors"),
    [
        ("fsdp_config__fsdp_size", 4, 0),
        ("fsdp_config__fsdp_size", 16, 0),
        ("fsdp_config__fsdp_size", -1, 0),
        ("fsdp_config__fsdp_size", 3, 1),
        ("ulysses_sequence_parallel_size", 4, 0),
        ("ulysses_sequence_parallel_size", 16, 2),
    ],
)
def test_sizes_of_fsdp_and_ulysses_divide_the_gpus_of_the_pool(make, key, size, errors):
    view = make(**QWEN, **{f"actor_rollout_ref__actor__{key}": size}, trainer__n_gpus_per_node=8)
    assert len(list(check_sharding(view, "main"))) == errors


def test_an_offload_that_fsdp1_does_not_read_is_warned_of(make):
    given = {"actor_rollout_ref__actor__fsdp_config__offload_policy": True, "trainer__n_gpus_per_node": 1}
    (warning,) = check_sharding(make(**given, actor_rollout_ref__actor__strategy="fsdp"), "main")
    assert "nothing is offloaded" in warning.reason
    assert not list(check_sharding(make(**given, actor_rollout_ref__actor__strategy="fsdp2"), "main"))
