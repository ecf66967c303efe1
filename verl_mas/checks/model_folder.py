"""What the files of a model folder say, without loading the model. None where the model is not on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION


def folder_of(view: DictConfig, key: str = "path") -> Path | None:
    """The folder that a key of a policy's model names."""
    path = view[SECTION].model.get(key)
    folder = Path(os.path.expanduser(path)) if isinstance(path, str) and path else None
    return folder if folder and folder.is_dir() else None


def positions(view: DictConfig) -> int | None:
    """The model's context in tokens, as verl reads it."""
    own = OmegaConf.select(view, f"{SECTION}.model.override_config.max_position_embeddings")
    found = own or _positions(folder_of(view, "hf_config_path") or folder_of(view))
    return found if type(found) is int else None


def _positions(folder: Path | None) -> object:
    settings = _json(folder / "config.json") if folder else {}
    text = settings.get("text_config")
    return settings.get("max_position_embeddings") or (
        text.get("max_position_embeddings") if isinstance(text, dict) else None
    )


def modules(view: DictConfig) -> list[str] | None:
    """The names of the modules that have weights, from the headers of the safetensors files."""
    folder = folder_of(view)
    if folder is None:
        return None
    index = _json(folder / "model.safetensors.index.json").get("weight_map")
    tensors = list(index) if isinstance(index, dict) else _header(folder / "model.safetensors")
    return [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")] or None


def _header(file: Path) -> list[str]:
    """A safetensors file starts with the length of a JSON text whose keys are the tensors' names."""
    if not file.is_file():
        return []
    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        text = data.read(size) if size < file.stat().st_size else b"{}"
    return list(_parsed(text))


def _json(file: Path) -> dict[str, object]:
    return _parsed(file.read_bytes()) if file.is_file() else {}


def _parsed(text: bytes) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:  # `check_served` reports a file that is not JSON
        return {}
    return found if isinstance(found, dict) else {}
