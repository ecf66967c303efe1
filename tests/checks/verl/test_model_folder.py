from __future__ import annotations

import json

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.numpy import save
from transformers import AutoTokenizer

from verl_mas.checks.verl.model_folder import ChatTemplate, has_own_head, is_stateful, model_number, modules


@pytest.fixture
def section(tmp_path):
    def section(files: dict[str, object], **model):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return OmegaConf.create({"path": str(tmp_path), **model})

    return section


def safetensors(**shapes: list[int]) -> bytes:
    return save({name: np.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(
    ("config", "model", "found"),
    [
        ({"max_position_embeddings": 4096}, {}, 4096),
        ({"text_config": {"max_position_embeddings": 2048}}, {}, 2048),
        ({"max_position_embeddings": 4096}, {"override_config": {"max_position_embeddings": 64}}, 64),
        ({}, {}, None),
        (["no mapping"], {}, None),
        (b"not JSON", {}, None),
    ],
)
def test_the_context_is_the_number_of_positions(section, config, model, found):
    assert model_number(section({"config.json": config}, **model), "max_position_embeddings") == found


def test_a_model_of_the_hub_has_no_files_here(section):
    there = section({}, path="owner/name")
    assert model_number(there, "max_position_embeddings") is None and modules(there) is None


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": safetensors(**{"a.q_proj.weight": [2, 2], "a.q_proj.bias": [2]})},
        {"model.safetensors.index.json": {"weight_map": {"a.q_proj.weight": "1", "a.q_proj.bias": "1"}}},
    ],
)
def test_modules_are_named_by_the_weights_of_one_file_or_several(section, files):
    assert modules(section(files)) == ["a.q_proj"]


@pytest.mark.parametrize(
    ("config", "stateful"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"layer_types": ["full_attention", "linear_attention"]}, True),
        ({"text_config": {"linear_conv_kernel_dim": 4}}, True),
        ({"mamba_d_state": 128}, True),
        ({"layer_types": "none"}, False),
    ],
)
def test_a_model_with_linear_attention_or_mamba_carries_a_state(section, config, stateful):
    assert is_stateful(section({"config.json": config})) is stateful


@pytest.mark.parametrize(
    ("config", "weights", "own"),
    [
        ({"tie_word_embeddings": False}, {}, True),
        ({"tie_word_embeddings": True}, {"lm_head.weight": [2, 2]}, False),
        ({}, {"lm_head.weight": [2, 2]}, True),
        ({}, {"a.weight": [2, 2]}, False),
    ],
)
def test_an_output_layer_has_weights_of_its_own_by_the_config_or_the_files(section, config, weights, own):
    assert has_own_head(section({"config.json": config, "model.safetensors": safetensors(**weights)})) is own
    assert has_own_head(section({}, path="Qwen/Qwen3-8B")) and not has_own_head(section({}, path="Qwen/Qwen3-4B"))


def test_a_norm_is_no_module_with_a_matrix(section):
    shapes = {"a.q_proj.weight": [2, 2], "a.norm.weight": [2]}
    file = safetensors(**shapes)
    assert modules(section({"model.safetensors": file})) == ["a.q_proj"]
    index = {"weight_map": dict.fromkeys(shapes, "1.safetensors")}
    assert modules(section({"model.safetensors.index.json": index, "1.safetensors": file})) == ["a.q_proj"]


@pytest.mark.parametrize("cut", [b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"{", safetensors(x=[1])[:12]])
def test_a_cut_file_names_no_modules(section, cut):
    assert modules(section({"model.safetensors": cut})) is None


# What the templates of published models use: loops with controls, JSON, special tokens, generation marks.
TEMPLATE = """{{ bos_token }}{%- for message in messages %}
{%- if message.role == "tool" %}{% continue %}{% endif %}
<{{ message.role }}>{{ message.content }}{% generation %}!{% endgeneration %}
{%- endfor %}
{{ {"a": "<é>"} | tojson }}{% if not thinking %} plain{% endif %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
MESSAGES = [{"role": "system", "content": "s"}, {"role": "tool", "content": "t"}, {"role": "user", "content": "a b"}]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_prompt_is_rendered_and_counted_as_the_models_tokenizer_does(letters, tmp_path, thinking):
    tokenizer = AutoTokenizer.from_pretrained(letters / "model")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    chat = ChatTemplate.of(tmp_path)
    assert chat is not None
    text = chat.render(MESSAGES, {"thinking": thinking})
    settings = {"add_generation_prompt": True, "thinking": thinking}
    assert text == tokenizer.apply_chat_template(MESSAGES, tokenize=False, **settings)
    ids = tokenizer.apply_chat_template(MESSAGES, tokenize=True, return_dict=False, **settings)
    assert chat.length(text, limit=1) == len(ids)
    assert chat.length(text, limit=10_000) is None


def test_the_default_of_several_templates_is_used(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    chat = ChatTemplate.of(tmp_path)
    assert chat is not None and chat.render(MESSAGES, {}) == "s"
    custom = ChatTemplate.of(tmp_path, "mine")
    assert custom is not None and custom.render(MESSAGES, {}) == "mine"
