from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from verl_mas.checks.verl.model_folder import modules, positions


@pytest.fixture
def section(tmp_path):
    def section(files: dict[str, object], **model):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return OmegaConf.create({"path": str(tmp_path), **model})

    return section


def safetensors(*names: str, **shapes: list[int]) -> bytes:
    entries = {name: {"data_offsets": [0, 7]} for name in names}
    entries |= {name: {"data_offsets": [0, 7], "shape": shape} for name, shape in shapes.items()}
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + b"weights"


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
    assert positions(section({"config.json": config}, **model)) == found


def test_a_model_of_the_hub_has_no_files_here(section):
    there = section({}, path="owner/name")
    assert positions(there) is None and modules(there) is None


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": safetensors("a.q_proj.weight", "a.q_proj.bias")},
        {"model.safetensors.index.json": {"weight_map": {"a.q_proj.weight": "1", "a.q_proj.bias": "1"}}},
    ],
)
def test_modules_are_named_by_the_weights_of_one_file_or_several(section, files):
    assert modules(section(files)) == ["a.q_proj"]


def test_a_norm_is_no_module_with_a_matrix(section):
    shapes = {"a.q_proj.weight": [2, 2], "a.norm.weight": [2]}
    file = safetensors(**shapes)
    assert modules(section({"model.safetensors": file})) == ["a.q_proj"]
    index = {"weight_map": dict.fromkeys(shapes, "1.safetensors")}
    assert modules(section({"model.safetensors.index.json": index, "1.safetensors": file})) == ["a.q_proj"]


@pytest.mark.parametrize("cut", [b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"{", safetensors("x")[:12]])
def test_a_cut_file_names_no_modules(section, cut):
    assert modules(section({"model.safetensors": cut})) is None
