"""The Python code that comes with a model, which a run executes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.verl.model_folder import readable_json
from verl_mas.errors import ConfigWarning

FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


def check_remote_code(config: DictConfig) -> Iterator[ConfigWarning]:
    """Warn of a model whose code this run executes, by `trust_remote_code` or by verl's reward workers."""
    model = config.actor_rollout_ref.model
    path = str(model.path)
    code = named_code(path)
    if model.trust_remote_code:
        reason = f"every training worker and engine runs {_written(path, code)}"
        fix = "read that code, and pin it by a local copy of the model; or set trust_remote_code=False"
        yield ConfigWarning("actor_rollout_ref.model.trust_remote_code=True", reason, fix)
    # verl's reward workers load tokenizers with trust_remote_code=True, whatever the setting.
    reward = config.reward.reward_model
    for where in (model.tokenizer_path or path, *([reward.model_path] if reward.enable else [])):
        if (code := named_code(str(where))) and not (model.trust_remote_code and where == path):
            reason = "verl's reward workers load the tokenizer with trust_remote_code=True, so they may run it"
            fix = "read that code, or remove `auto_map` from the JSON files of a local copy"
            yield ConfigWarning(f"{where} names Python code: {', '.join(code)}", reason, fix)


def named_code(path: str) -> list[str]:
    """The Python files that the JSON files of a model folder name; empty for a name on the hub."""
    folder, found = Path(os.path.expanduser(path)), set()
    for name in FILES:
        named = readable_json(folder / name).get("auto_map")
        for classes in named.values() if isinstance(named, Mapping) else ():
            # "module.Class", "owner/name--module.Class", or a list of these with null.
            for reference in classes if isinstance(classes, list) else [classes]:
                if isinstance(reference, str):
                    found.add(reference.rpartition(".")[0] + ".py")
    return sorted(found)


def _written(path: str, code: list[str]) -> str:
    if code:
        return f"{', '.join(code)} of {path}"
    if Path(os.path.expanduser(path)).is_dir():
        return f"the Python code that the JSON files of {path} name; now they name none"
    return f"the Python code that {path} has on the hub when the run starts"
