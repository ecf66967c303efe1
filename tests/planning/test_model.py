"""The computed size of a model equals the size of the model that transformers makes."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from verl_mas.planning.known_models import KNOWN, known
from verl_mas.planning.model import size_of

# Published numbers of parameters, in billions.
PUBLISHED = {
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen2-7B": 7.62,
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B": 1.544,
    "Qwen/Qwen2.5-3B": 3.09,
    "Qwen/Qwen2.5-7B": 7.62,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3.754622976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8.292166656,
    "Qwen/Qwen3-VL-2B-Instruct": 2.127532032,
    "Qwen/Qwen3-VL-4B-Instruct": 4.437815808,
    "Qwen/Qwen3-VL-8B-Instruct": 8.767123696,
    "meta-llama/Llama-3.2-1B": 1.236,
    "meta-llama/Llama-3.2-3B": 3.213,
    "meta-llama/Llama-3.1-8B": 8.03,
}


def test_known_models_have_as_many_parameters_as_published():
    assert KNOWN.keys() == PUBLISHED.keys()
    for name, billions in PUBLISHED.items():
        assert size_of(known(name)).parameters / 1e9 == pytest.approx(billions, rel=2e-3), name


def test_keys_and_values_of_a_token():
    published = {"Qwen/Qwen3-4B": 147_456, "Qwen/Qwen3-1.7B": 114_688, "Qwen/Qwen2.5-7B": 57_344}
    assert {name: size_of(known(name)).kv_bytes() for name in published} == published


def test_heads_are_split_over_tensor_parallel_ranks_and_then_repeated():
    size = size_of(known("Qwen/Qwen2.5-3B"))  # two heads
    assert (size.kv_bytes(2), size.kv_bytes(4)) == (size.kv_bytes() // 2, size.kv_bytes() // 2)


def test_layers_with_linear_attention_have_no_keys_and_values():
    """In Qwen3.5, one layer of four has keys and values."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
    assert size_of({"model_type": "qwen3_5_text", **sizes, **heads}).kv_bytes() == 2 * 2 * 2 * 2 * 16


def test_a_variant_has_its_own_context():
    assert known("Qwen/Qwen2.5-7B")["max_position_embeddings"] == 131_072
    assert known("Qwen/Qwen2.5-7B-Instruct")["max_position_embeddings"] == 32_768
    assert known("Qwen/Qwen3-4B-Base")["max_position_embeddings"] == 32_768
    assert known("meta-llama/Llama-3.1-8B-Instruct")["max_position_embeddings"] == 131_072
    assert known("Qwen/Qwen3-4B-Base-Base") is None


def test_the_size_is_that_of_a_model_that_is_really_made():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    rest = {"max_position_embeddings": 128, "tie_word_embeddings": False}
    fields = {"model_type": "qwen3", **sizes, **heads, **rest}
    config = AutoConfig.for_model(**fields)
    made = AutoModelForCausalLM.from_config(config)
    size = size_of(fields)
    assert size.parameters == sum(p.numel() for p in made.parameters())
    assert size.layer == sum(p.numel() for p in made.model.layers[0].parameters()) + 64 // 3  # and a part of the norm
    linear = [m for m in made.model.modules() if isinstance(m, torch.nn.Linear)]
    assert size.adapted() == sum(m.in_features + m.out_features for m in linear)
    queries = size.adapted(["q_proj"])
    assert queries == 3 * (64 + 4 * 16) and size.adapted(excluded=r".*q_proj") == size.adapted() - queries
    assert size.adapted(["lm_head"]) == 64 + 50
    assert not size.tied


@pytest.mark.parametrize("name", [name for name in KNOWN if "-VL-" in name])
def test_a_vision_tower_is_that_of_the_class_of_transformers(name):
    """The modules are made on the meta device, in their published sizes."""
    fields = dict(known(name))
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        made = AutoModelForImageTextToText.from_config(config)
    size, tower = size_of(known(name)), made.model.visual
    assert size.parameters == sum(p.numel() for p in made.parameters())
    assert size.tower == sum(p.numel() for p in tower.parameters())
    assert size.vision.layer == sum(p.numel() for p in tower.blocks[0].parameters())
    assert (size.vision.layers, size.vision.hidden) == (len(tower.blocks), tower.blocks[0].norm1.weight.numel())
    assert size.vision.pixels == 4 * 4 * tower.patch_embed.proj.weight[0].numel()  # four patches of float32
    layer = sum(p.numel() for p in made.model.language_model.layers[0].parameters())
    assert 0 <= size.layer - layer < size.hidden  # and a part of the norm


def test_a_tower_of_another_kind_is_counted_and_not_estimated():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300}
    size = size_of({"model_type": "gemma3", "text_config": text, "vision_config": {**sizes, "image_size": 28}})
    assert size.vision is None and 0 < size.tower < size.parameters
