from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from verl_mas.checks.verl.training_engine import check_heads, check_lengths, check_sharding

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


# Prompts and responses, at the last length that fits and the first that does not.


MODEL_LEN, POSITIONS = "rollout.max_model_len", "model.override_config.max_position_embeddings"
BUDGET, PARTS = "actor.ppo_max_token_len_per_gpu", "actor.ulysses_sequence_parallel_size"
FITS = {
    "model.path": "no such model", POSITIONS: 4096, "rollout.name": "transformers", "rollout.prompt_length": 1096,
    "rollout.response_length": 3000, MODEL_LEN: 4096, "actor.use_dynamic_bsz": True, BUDGET: 4096,
}  # fmt: skip
WHOLE = "max_prompt_length + max_response_length = 4096"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({MODEL_LEN: None}, []),
        ({BUDGET: 2048, PARTS: 2}, []),
        ({BUDGET: 1, "actor.use_dynamic_bsz": False}, []),
        ({MODEL_LEN: 4097}, [f"{MODEL_LEN}=4097"]),
        ({MODEL_LEN: 4095}, [WHOLE]),
        ({MODEL_LEN: None, POSITIONS: 4095}, [WHOLE]),
        ({BUDGET: 4095}, [f"{BUDGET}=4095"]),
        ({BUDGET: 2047, PARTS: 2}, [f"{BUDGET}=2047"]),
    ],
)
def test_one_token_too_many_is_refused(changes, problems):
    view = OmegaConf.create({})
    for key, value in {**FITS, **changes}.items():
        OmegaConf.update(view, f"actor_rollout_ref.{key}", value, force_add=True)
    found = check_lengths(view, "main", trained=True)
    assert [problem.value.removeprefix("policy main: ") for problem in found] == problems


@pytest.mark.parametrize(
    ("gib", "device", "budget", "fits"),
    # SmolLM2-135M on machines of these sizes
    [(24, "cpu", 16384, 4934), (24, "cpu", 4934, None), (24, "cuda", 16384, None), (8, "cpu", 2048, 1644)],
)
def test_on_a_cpu_a_micro_batch_that_takes_most_of_the_memory_is_named(gib, device, budget, fits, monkeypatch):
    monkeypatch.setattr("ray._common.utils.get_system_memory", lambda: gib << 30)
    sizes = {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152}
    view = OmegaConf.create({"trainer": {"device": device}})
    changes = {BUDGET: budget, MODEL_LEN: None, "rollout.prompt_length": 80, "rollout.response_length": 12}
    for key, value in {**FITS, **changes, "model.override_config": sizes}.items():
        OmegaConf.update(view, f"actor_rollout_ref.{key}", value, force_add=True)
    warnings = list(check_lengths(view, "main", trained=True))
    assert [warning.fix.split("=")[1] for warning in warnings] == ([f"{fits} or less"] if fits else [])
