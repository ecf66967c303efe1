"""Checks that a model's folder has everything that a run reads."""

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.place import is_remote, missing
from verl_mas.checks.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning import model_folder
from verl_mas.planning.model_folder import is_hub_name, local_folder, tokenizer_in

NOUN = "a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"


def check_model(config: DictConfig) -> Iterator[Problem]:
    """Check that a local folder has a model, its tokenizer and a chat template. A model on the hub is checked if it is
    in the cache of this machine."""
    model, place = config.actor_rollout_ref.model, "actor_rollout_ref.model"
    for key in ("tokenizer_path", "hf_config_path", "lora_adapter_path"):
        path = model.get(key)
        if isinstance(path, str) and not (is_remote(path) or is_hub_name(path) or Path(path).expanduser().is_dir()):
            yield missing(config, f"{place}.{key}", path, "a folder that exists, or a name of the hub")
    path, folder = model.path, local_folder(str(model.path or ""))
    if not isinstance(path, str) or not path.strip() or (path.endswith("/") and folder):
        fix = FIX if not folder else f"set the model path to {str(path).rstrip('/')}"
        yield ConfigError(f"{place}.path={path!r}", rule=f"it is {NOUN}, without a slash at its end", fix=fix)
    elif folder is None and (is_remote(path) or is_hub_name(path)):
        fix = f"run hf download {path}, and check again" if is_hub_name(path) else "download it and give its folder"
        yield ConfigWarning(f"{place}.path={path}", "not checked: it is not on this machine", fix)
    elif folder is None:
        yield missing(config, f"{place}.path", path, NOUN, FIX)
    else:
        yield from _look_into(folder, model)


def _look_into(folder: Path, model: DictConfig) -> Iterator[ConfigError]:
    rule, fix = "a model folder holds what save_pretrained writes", "save or download the model again"
    if not model_folder.readable_json(folder / "config.json"):
        yield ConfigError(f"{folder} has no config.json that can be read", rule=rule, fix=fix)
    files = model_folder.weight_files(folder)
    if not files:
        yield ConfigError(f"{folder} has no {model_folder.WEIGHTS[0]}", rule=rule, fix=fix)
    for file in (file for file in files if file.suffix == ".safetensors"):
        try:
            model_folder.shapes_in(file)
        except (ValueError, OSError) as error:
            yield ConfigError(f"{file} is not whole: {error}", rule=rule, fix=fix)
    if model.trust_remote_code:
        return  # The tokenizer may consist of code, which no check runs.
    try:
        tokenizer = tokenizer_in(str(local_folder(str(model.get("tokenizer_path") or folder)) or folder))
    except ConfigError as error:
        yield error
        return
    if not (model.get("custom_chat_template") or tokenizer.chat_template):
        rule, fix = "prompts are lists of messages, which a chat template renders", "use an instruct model"
        fix = f"set tokenizer.chat_template and save the tokenizer again, or {fix}"
        yield ConfigError(f"{folder} has no chat template", rule=rule, fix=fix)
