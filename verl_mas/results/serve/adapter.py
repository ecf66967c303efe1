"""Writes a trained adapter as a PEFT folder, or merged into its base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from verl_mas.errors import ConfigError, DiskError
from verl_mas.results.serve.model import Tensors, load_base, read_record, read_weights, reading
from verl_mas.trainer.adapters.files import CONFIG, WEIGHTS, plain_config, write_weights
from verl_mas.workflow.team_file import TeamPolicy

LORA_FILE = "lora_train_meta.json"  # verl's file with its LoRA configuration, next to the weights of a policy
BASE = "base_model_name_or_path"
_NAME = ".default."  # the name of verl's only adapter in PEFT
_LORA = ".lora_"
PROMPT = "Explain in two or three sentences how 17 * 23 can be computed in one's head, and why the answer is odd."


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter: PEFT's configuration, and the tensors by PEFT's names."""

    config: dict[str, object]
    tensors: Tensors

    @classmethod
    def of_folder(cls, folder: Path) -> SavedAdapter:
        config = read_record(folder / CONFIG, "r", "peft_type")
        with reading(folder / WEIGHTS):
            return cls(config, load_file(folder / WEIGHTS))

    @classmethod
    def of_weights(cls, folder: Path, policy: TeamPolicy) -> SavedAdapter:
        """Read the only adapter of a policy. verl's workers saved the weights of the whole model, but only a part of
        the adapter's configuration, so the rest is taken from the adapter from which training started, or from PEFT's
        defaults."""
        tensors = {name.replace(_NAME, "."): tensor for name, tensor in read_weights(folder, None, _LORA).items()}
        foreign = sorted(name for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight")))
        if foreign or not tensors:
            value = f"{folder} has {foreign[0] if foreign else 'no adapter'}, and {LORA_FILE}"
            rule = "an adapter is exported that has pairs of lora_A and lora_B"
            raise DiskError(value, rule=rule, fix="convert it by python -m verl.model_merger")
        saved = read_record(folder / LORA_FILE, "r", "lora_alpha")
        start = _start_config(policy)
        own = {"r": saved["r"], "lora_alpha": saved["lora_alpha"], "peft_type": "LORA", "task_type": "CAUSAL_LM"}
        # Modules are listed by their whole names, because modules of the same short name in other layers may have no
        # adapter.
        modules = sorted({name.removeprefix("base_model.model.").rsplit(".", 2)[0] for name in tensors})
        return cls({**start, **own, "target_modules": modules, "inference_mode": True}, tensors)

    def write(self, folder: Path, base: str) -> None:
        write_weights(folder, {**self.config, BASE: base}, self.tensors)

    def merge(self, base: str, folder: Path, tokenizer: PreTrainedTokenizerBase, *, trust: bool) -> float:
        """Write the base with the adapter merged into it, in the precision of the base. Returns the largest difference,
        in float32, between the log-probs of a prompt under the written model and under the adapter."""
        model, dtype = load_base(base, trust=trust)
        adapted = self._on(model, base)
        ids = tokenizer(PROMPT)["input_ids"]
        expected = log_probs(adapted, ids)
        merged = adapted.merge_and_unload(safe_merge=True)
        # Only parameters are converted. `merged.to(dtype)` would also round the frequencies of the rotary embeddings,
        # which are not saved in files and could not be restored.
        _set_precision(merged, dtype)
        merged.save_pretrained(folder)
        _set_precision(merged, torch.float32)
        return float((log_probs(merged, ids) - expected).abs().max())

    def _on(self, model: nn.Module, base: str) -> PeftModel:
        with TemporaryDirectory() as alone:
            self.write(Path(alone), base)
            try:
                adapted = PeftModel.from_pretrained(model, alone)
            except (RuntimeError, ValueError) as error:  # tensors of other sizes, or no module with the targets' names
                raise _other_base(base, str(error).strip().splitlines()[-1].strip()) from error
        # PEFT ignores tensors whose modules are missing in the base, so this check looks for such tensors. Without
        # `save_embedding_layers=False`, PEFT might ask the hub for the size of the vocabulary.
        used = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        unused = sorted(self.tensors.keys() - used.keys())
        if unused:
            raise _other_base(base, f"{base} has no module for {unused[0]}")
        users = Counter(parameter.data_ptr() for _, parameter in adapted.named_parameters(remove_duplicate=False))
        layers = [(name, module) for name, module in adapted.named_modules() if isinstance(module, LoraLayer)]
        for name, layer in layers:
            if users[cast(torch.Tensor, layer.get_base_layer().weight).data_ptr()] > 1:
                layer_name = name.removeprefix("base_model.model.")
                value = f"the adapter is on {layer_name}, whose weights another layer has, too"
                rule = "merged into tied weights, an adapter changes both layers, and it was trained on one"
                raise ConfigError(value, rule=rule, fix="leave out --merge, and serve the adapter itself")
        return adapted


def _other_base(base: str, problem: str) -> ConfigError:
    rule = "an adapter is merged into the base that it was trained on"
    fix = f"make that base available at {base}"
    return ConfigError(f"the adapter does not fit {base}: {problem}", rule=rule, fix=fix)


def _start_config(policy: TeamPolicy) -> dict[str, object]:
    """Return the configuration of the adapter from which training started, or PEFT's defaults if there is none."""
    if policy.start_adapter is None:
        return plain_config(LoraConfig())
    path = Path(policy.start_adapter) / CONFIG
    if not path.is_file():
        rule = "an adapter that started from another one has its configuration"
        fix = f"make {path} available; a link is enough"
        raise ConfigError(f"{path} is not there, and the policy was trained from that adapter", rule=rule, fix=fix)
    found = read_record(path)
    if other := [key for key in ("modules_to_save", "bias") if found.get(key) not in (None, [], "none")]:
        rule = "an adapter is exported that has nothing beside its pairs of lora_A and lora_B"
        fix = "convert the policy by python -m verl.model_merger"
        raise ConfigError(f"{path} has {other[0]}={found[other[0]]}", rule=rule, fix=fix)
    return found


def _set_precision(model: nn.Module, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def log_probs(model: nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Return the log-probs of all tokens of a prompt except the first."""
    tokens = torch.tensor([ids])
    scores: torch.Tensor = model.eval()(input_ids=tokens).logits.float().log_softmax(-1)
    return scores[0, :-1].gather(-1, tokens[0, 1:, None]).squeeze(-1)
