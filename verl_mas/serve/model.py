"""Folders that transformers, vLLM and SGLang load: weights, configuration, tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from verl.utils.model import get_hf_auto_model_class
from verl.utils.transformers_compat import drop_tied_target_keys

from verl_mas.errors import ConfigError, DiskError
from verl_mas.serve.shards import Tensors

# Which every tokenizer has.
TOKENIZER_FILE = "tokenizer_config.json"
# Not copied: written with the weights.
_OF_WEIGHTS = ("config.json", "*.safetensors", "*.bin", "*.index.json")


def write_model(weights: Tensors, like: Path, folder: Path, *, trust: bool) -> str:
    """Weights by the names of the model whose configuration and tokenizer are in `like`. Returns what was written."""
    with available(str(like)):
        config = AutoConfig.from_pretrained(like, trust_remote_code=trust)
        with torch.device("meta"):
            model = get_hf_auto_model_class(config).from_config(config, trust_remote_code=trust)
    drop_tied_target_keys(weights, model, config)
    found = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    lacking = sorted(name for name, parameter in model.named_parameters() if parameter.is_meta)
    if lacking or found.unexpected_keys:
        wrong = [f"no {name}" for name in lacking] + found.unexpected_keys
        raise DiskError(
            f"the weights for {folder.name} have {', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}",
            rule=f"they have each tensor of {config.architectures[0]}",
            fix=f"check that {like} is of the same run",
        )
    model.save_pretrained(folder)
    copy_tokenizer(like, folder)
    return f"{model.num_parameters():,} parameters in {str(model.dtype).removeprefix('torch.')}"


def copy_tokenizer(source: Path, folder: Path) -> None:
    """With the chat template and what else is beside the weights of a model."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*_OF_WEIGHTS), dirs_exist_ok=True)


def load_tokenizer(path: str, template: str | None, *, trust: bool) -> PreTrainedTokenizerBase:
    with available(path):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def load_base(path: str, *, trust: bool) -> tuple[nn.Module, torch.dtype]:
    """A model in float32, and the precision of its files."""
    with available(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        model: nn.Module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=trust)
    return model, config.dtype or torch.float32


@contextmanager
def available(path: str) -> Iterator[None]:
    """Around the loading of a part of a model."""
    try:
        yield
    except (OSError, ValueError) as error:  # what transformers raises for a folder, a name and code that it refuses
        raise ConfigError(
            f"{path} cannot be loaded: {str(error).strip().splitlines()[0]}",
            rule="a model is loaded as the run loaded it: by this path, or by this name from the hub",
            fix="make it available there, a link is enough; for a model with code of its own, add --trust-remote-code",
        ) from error
