"""Checks of the files and folders that a run reads and writes, models among them. If the run is on another machine, a
path that is missing or not writable on this machine is a warning, because the other machine cannot be checked."""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.refusals import Problem
from verl_mas.config.hydra import group_files
from verl_mas.config.modes import KEY, MODES, mode_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning import model_folder
from verl_mas.planning.hardware import Hardware
from verl_mas.planning.model_folder import is_hub_name, local_folder, tokenizer_in
from verl_mas.util import read_yaml

# The machines for which a run is checked (`--gpus` of `verl-mas check` and `plan`), and the arguments of the run.
_CHECKED: ContextVar[tuple[Hardware | None, Sequence[str]]] = ContextVar("checked", default=(None, ()))
CONNECT_S = 3.0
NOUN = "a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"
FOLDERS = (
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "mas.trajectories.dir",
)


def target() -> Hardware | None:
    """The machines for which the run is checked; None if it runs on this machine, or joins a cluster."""
    return _CHECKED.get()[0]


@contextmanager
def run_on(hardware: Hardware | None, arguments: Sequence[str] = ()) -> Iterator[None]:
    token = _CHECKED.set((hardware, arguments))
    try:
        yield
    finally:
        _CHECKED.reset(token)


def written() -> dict[str, str]:
    """Map the settings and groups on the command line to their values, in the order of the command line."""
    from hydra.core.hydra_config import HydraConfig

    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else _CHECKED.get()[1]
    return {key: value for key, _, value in (argument.lstrip("+").partition("=") for argument in given)}


def was_written(setting: str) -> bool:
    """Whether the command line sets this setting. If it does, the user has chosen the value on purpose."""
    return setting in written()


def check_order(config: DictConfig) -> Iterator[ConfigError]:
    """Check the order of groups on the command line. A team's file sets the mode and every default of `mas`. If the
    team came after a recipe or a mode, its file would replace values that the recipe or the mode has set."""
    order = ("mas", "recipe", "mas/mode")
    groups = {key: value for key, value in written().items() if key in order}
    mode, now = groups.get("mas/mode"), mode_of(config)
    shipped = any(mode == each.verl for each in MODES.values())
    replaced = shipped and now is not None and now.verl != mode and not was_written(KEY)
    if replaced or ([key for key in groups if key != "mas/mode"] == ["recipe", "mas"] and _sets_team(groups["recipe"])):
        value, right = (" ".join(f"+{key}={groups[key]}" for key in keys if key in groups) for keys in (groups, order))
        rule = "Hydra merges them in this order, and the team's defaults would replace the settings before them"
        yield ConfigError(value, rule=rule, fix=f"write {right}")


def _sets_team(recipe: str) -> bool:
    file = read_yaml(path) if (path := group_files("recipe").get(recipe)) else {}
    parts = [part.removeprefix("/recipe/") for part in file.get("defaults", ()) if isinstance(part, str)]
    return "mas" in file or any(_sets_team(part) for part in parts)


@cache
def made_by() -> dict[str, str]:
    """Map the folders of the shipped recipes' data and models to the commands that create them."""
    return read_yaml(Path(__file__).parents[1] / "data" / "made_by.yaml")


def elsewhere(config: DictConfig) -> str:
    """The reason why the run is not on this machine; empty if it is on this machine."""
    if hardware := target():
        return f"the run is on {hardware}"
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    return f"the run joins the Ray cluster at {address}" if address and address not in ("auto", "local") else ""


def unless_elsewhere(config: DictConfig, error: ConfigError) -> Problem:
    """Turn an error about this machine into a warning if the run is on another machine."""
    if why := elsewhere(config):
        reason = f"true of this machine; {why}, and that machine was not checked"
        return ConfigWarning(error.value, reason=reason, fix=f"if it is so there, too: {error.fix}")
    return error


def missing(config: DictConfig, setting: str, path: str, noun: str, fix: str = "") -> Problem:
    """Report a missing file or folder. `fix` is used if no recipe has a command that creates the file or folder."""
    command = made_by().get(str(Path(path).parent))
    value = f"{setting}={path} does not exist".replace("\0", "\\0")
    fix = f"create it with: {command}" if command else fix or f"set {setting} to an existing one"
    return unless_elsewhere(config, ConfigError(value, rule=f"it is {noun}", fix=fix))


def is_remote(path: str) -> bool:
    """Whether a path is a URL such as hdfs:// or s3://, which verl copies when the run starts."""
    return "://" in path


def no_connection(address: str) -> str:
    """Try once to connect to host:port or a URL, and describe the error. Empty if the connection succeeds, if a proxy
    is used, or if `address` is malformed, which another check reports."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = parts.hostname
    if not (host and port) or (parts.scheme in getproxies() and not proxy_bypass(host)):
        return ""
    try:
        with socket.create_connection((host, port), CONNECT_S):
            return ""
    except (OSError, UnicodeError) as error:
        return f"a connection to {host}:{port}, tried once for {CONNECT_S:g} s: {error}"


def not_writable(folder: Path) -> str:
    """Explain why a run cannot write into a folder, which may not exist yet; empty if the run can."""
    parent = folder
    try:
        # A dangling link counts as existing, because no folder can be created in its place.
        while not parent.is_symlink() and not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            return f"{parent} is a {'file' if parent.exists() else 'link to nowhere'}"
        # Write a file instead of reading permissions, because root has permissions even in /proc and on a read-only
        # disk.
        with tempfile.TemporaryFile(dir=parent):
            return ""
    except (OSError, ValueError) as error:
        return f"{parent}: {error}"


def check_folders(config: DictConfig) -> Iterator[Problem]:
    for setting in FOLDERS:
        folder = OmegaConf.select(config, setting)
        if folder and is_remote(folder):
            rule, fix = "it is the path of a local or mounted folder", f"set {setting}=<folder>"
            yield ConfigError(f"{setting}={folder!r}", rule=rule, fix=fix)
        elif folder and (why := not_writable(Path(folder))):
            rule = "a run creates this folder and writes its checkpoints or records there"
            value, fix = f"{setting}={folder!r} cannot be written: {why}", f"set {setting} to another folder"
            yield unless_elsewhere(config, ConfigError(value, rule=rule, fix=fix))


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
