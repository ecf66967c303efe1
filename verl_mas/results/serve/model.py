"""Writes model folders that transformers, vLLM and SGLang load (weights, configuration, tokenizer), and reads the
weights that verl's FSDP workers saved in a checkpoint. Errors name damaged files."""

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin
from verl.utils.model import get_hf_auto_model_class
from verl.utils.tokenizer import hf_processor
from verl.utils.transformers_compat import drop_tied_target_keys

from verl_mas.errors import ConfigError, DiskError, MasError

# The folder with a policy's model configuration and tokenizer, and the file with the number of workers.
HUGGINGFACE, WORKERS_FILE = "huggingface", "fsdp_config.json"
Tensors = dict[str, torch.Tensor]
TOKENIZER_FILE = "tokenizer_config.json"  # every tokenizer has this file
# Files that are not copied, because they are written together with the weights.
_OF_WEIGHTS = ("config.json", "*.safetensors", "*.bin", "*.index.json")


def write_model(weights: Tensors, like: Path, folder: Path, *, trust: bool) -> str:
    """Write a model folder with these weights, and with the configuration and tokenizer in `like`. Returns a
    description of the written model."""
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
        value = f"the weights for {folder.name} have {', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}"
        rule = f"they have each tensor of {config.architectures[0]}"
        raise DiskError(value, rule=rule, fix=f"check that {like} is of the same run")
    model.save_pretrained(folder)
    copy_tokenizer(like, folder)
    return f"{model.num_parameters():,} parameters in {str(model.dtype).removeprefix('torch.')}"


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer, the chat template and all other files of a model except its weights."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*_OF_WEIGHTS), dirs_exist_ok=True)


def load_tokenizer(path: str, template: str | None, *, trust: bool) -> PreTrainedTokenizerBase:
    with available(path):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def load_processor(path: str, template: str | None, *, trust: bool) -> ProcessorMixin | None:
    """Load the processor of a model; None for a text model."""
    processor: ProcessorMixin | None = hf_processor(path, trust_remote_code=trust)
    if processor is not None and template is not None:
        processor.chat_template = template
    return processor


def load_base(path: str, *, trust: bool) -> tuple[nn.Module, torch.dtype]:
    """Load a model in float32; return it with the precision of its files."""
    with available(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        kind = get_hf_auto_model_class(config)
        model: nn.Module = kind.from_pretrained(path, dtype=torch.float32, trust_remote_code=trust)
    return model, config.dtype or torch.float32


@contextmanager
def available(path: str) -> Iterator[None]:
    """Convert errors of loading a part of a model to ConfigErrors."""
    try:
        yield
    except (OSError, ValueError) as error:  # transformers raises them if it refuses a folder, a name or code
        value = f"{path} cannot be loaded: {str(error).strip().splitlines()[0]}"
        rule = "a model is loaded as the run loaded it: by this path, or by this name from the hub"
        fix = "make it available there, a link is enough; for a model with code of its own, add --trust-remote-code"
        raise ConfigError(value, rule=rule, fix=fix) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a file, or the files in a folder, to DiskErrors."""
    try:
        yield
    except MasError:  # handled before ValueError, because some MasErrors are also ValueErrors
        raise
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        cause = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        rule = "it is as training wrote it, and holds data only: nothing in it is executed"
        fix = "copy it again, or export another checkpoint of the run"
        raise DiskError(f"{path} cannot be read: {cause}", rule=rule, fix=fix) from error


def read_record(path: Path, *keys: str) -> dict[str, object]:
    """Read a JSON object that must have these keys."""
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
        if lacking := [key for key in keys if key not in found]:
            raise ValueError(f"it has no {', '.join(lacking)}")
    return found


def read_weights(folder: Path, dtype: torch.dtype | None, only: str = "") -> Tensors:
    """Read the saved weights by name, and join their shards. Floating-point tensors are converted to `dtype`. `only`:
    read only tensors with this text in their names. No code in the files is executed."""
    workers = read_record(folder / WORKERS_FILE, "world_size")["world_size"]
    first = _load(folder, workers, 0)
    # If several replicas saved the weights, the files of the first replica contain all shards.
    divided = [tensor for tensor in first.values() if isinstance(tensor, DTensor)]
    shards = max((tensor.device_mesh.size(-1) for tensor in divided), default=1)
    states = [first, *(_load(folder, workers, rank) for rank in range(1, shards))]
    with torch.no_grad():
        return {name: in_precision(_joined([state[name] for state in states]), dtype) for name in first if only in name}


def _load(folder: Path, workers: object, rank: int) -> Mapping[str, torch.Tensor]:
    path = folder / f"model_world_size_{workers}_rank_{rank}.pt"
    if not path.is_file():
        rule = f"each of the {workers} training workers saved a part of the policy's weights"
        raise DiskError(f"{path} is missing", rule=rule, fix="copy this folder of every node of the run into one")
    with reading(path):
        state: Mapping[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join the shards of a tensor. A tensor without shards is the same in all files."""
    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    placement = first.placements[-1]
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    return torch.cat(local, dim=placement.dim) if isinstance(placement, Shard) else local[0]


def in_precision(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
