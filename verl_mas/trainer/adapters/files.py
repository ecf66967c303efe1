"""Files of an adapter: weights as PEFT and inference engines read them, and the state from which training resumes.

All tensors are stored unsharded under PEFT's names, so that the number of workers may change.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from verl_mas.errors import ConfigError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TRAINING = "optimizer.pt"

Tensors: TypeAlias = dict[str, Tensor]
# Name of a weight -> name of a value that the optimiser stores for it -> the value.
OptimizerState: TypeAlias = dict[str, dict[str, object]]


def plain_config(config: LoraConfig) -> dict[str, object]:
    """Return a PEFT configuration as it is written to its file. Sets become sorted lists, so that two saves are
    equal."""
    given = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
    plain: dict[str, object] = json.loads(json.dumps(given | {"inference_mode": True}))
    return plain


def write_weights(folder: Path, config: Mapping[str, object], weights: Tensors) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def read_weights(folder: Path, config: Mapping[str, object]) -> Tensors:
    """Read an adapter's weights. Raises ConfigError if its saved rank, scale or kind differs from `config`."""
    saved = json.loads((folder / CONFIG).read_text())
    for key in _SCALING:
        # Files of another PEFT version omit fields that are not set.
        if (saved.get(key) or None) != (config.get(key) or None):
            value = f"the adapter in {folder} has {key}={saved.get(key)}, and the policy has {config.get(key)}"
            rule = "an adapter continues with the rank and the scale that its weights were trained with"
            fix = f"set {_SETTINGS.get(key, key)}={saved.get(key)} for the policy, or start from another adapter"
            raise ConfigError(value, rule=rule, fix=fix)
    return load_file(folder / WEIGHTS)


# _SCALING: fields that, besides the weights, determine the function of an adapter. _SETTINGS: two of these fields ->
# the settings of a policy from which they come.
_SCALING = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "alora_invocation_tokens")
_SETTINGS = {"r": "model.lora_rank", "lora_alpha": "model.lora_alpha"}


def write_training(folder: Path, optimizer: OptimizerState, schedule: int) -> None:
    """Write the state of an optimiser, and the number of steps of its learning-rate schedule."""
    torch.save((optimizer, schedule), folder / TRAINING)


def read_training(folder: Path) -> tuple[OptimizerState, int]:
    saved = torch.load(folder / TRAINING, map_location="cpu", weights_only=True)
    if isinstance(saved, dict):  # written by version 0.2.0
        return saved, int(json.loads((folder / "trainer_state.json").read_text())["schedule"])
    optimizer, schedule = saved
    return optimizer, schedule
