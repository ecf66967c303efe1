"""Whether a policy can be served: its model folder, the Python code that comes with it, and its engine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.model_folder import (
    ChatTemplate,
    is_hub_name,
    local_folder,
    read_json,
    readable_json,
    shapes_in,
)
from verl_mas.checks.verl.place import is_remote, made_by, missing, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, raised_by
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.engines.contract import contracts, lacking
from verl_mas.engines.contract import missing as missing_names
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.platform import DEVICE as CPU
from verl_mas.registry import closest, nearest

# Of model.override_config: what most models read.
OVERRIDDEN = (
    "attn_implementation attention_dropout max_position_embeddings model_config moe_config num_hidden_layers "
    "rope_parameters rope_scaling rope_theta sliding_window tie_word_embeddings use_sliding_window"
).split()


def check_served(config: DictConfig) -> Iterator[Problem]:
    """The model and the engine of a run without a team, or of a policy's view."""
    engine, device = config.actor_rollout_ref.rollout.name, config.trainer.device
    yield from check_engine(engine, device)
    yield from check_installed(config)
    yield from check_remote_code(config)
    yield from check_beside_model(config)
    model = list(check_model(config))
    yield from model
    facts = facts_of(engine)
    if facts.check_options:
        yield from raised_by(facts.check_options, config.actor_rollout_ref.rollout.engine_kwargs)
    if facts.check_model and not any(isinstance(problem, ConfigError) for problem in model):
        path = config.actor_rollout_ref.model.path
        options = config.actor_rollout_ref.rollout.engine_kwargs.get(engine) or {}
        yield from raised_by(facts.check_model, str(local_folder(path) or path), device, options)


def check_beside_model(config: DictConfig) -> Iterator[Problem]:
    """What verl loads beside the weights."""
    model = config.actor_rollout_ref.model
    for key in ("tokenizer_path", "hf_config_path"):
        path = model.get(key)
        if isinstance(path, str) and not (is_remote(path) or is_hub_name(path) or Path(path).expanduser().is_dir()):
            yield missing(config, f"actor_rollout_ref.model.{key}", path, "a folder that exists, or a name of the hub")
    libraries = model.get("external_lib") or []
    for name in [libraries] if isinstance(libraries, str) else libraries:
        package = str(name).partition(".")[0]
        if not package or find_spec(package) is None:
            yield missing(config, "actor_rollout_ref.model.external_lib", str(name), "a module that can be imported")


def check_engine(name: str, device: str | None = None) -> Iterator[ConfigError]:
    known = list(ENGINES) if name in ENGINES else engines_of_verl()
    if name not in known:
        rule = "it names a rollout engine that is registered with verl"
        yield ConfigError(f"actor_rollout_ref.rollout.name={name}", rule=rule, fix=nearest(str(name), known))
    if check := facts_of(name).check_ready:
        yield from raised_by(check, device)


def engines_of_verl() -> list[str]:
    """With those that a package registers with verl itself. Importing verl takes seconds."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    return list(RolloutReplicaRegistry._registry)  # noqa: SLF001  # see verl_.contract


def check_installed(config: DictConfig) -> Iterator[Problem]:
    """The packages that the engine and the model's attention need."""
    model = config.actor_rollout_ref.model
    if model.get("use_liger") and find_spec("liger_kernel") is None:
        value = "actor_rollout_ref.model.use_liger=True, and liger-kernel is not installed"
        fix = "pip install liger-kernel, or set actor_rollout_ref.model.use_liger=False"
        error = ConfigError(value, rule="verl loads the model with the kernels of that package", fix=fix)
        yield unless_elsewhere(config, error)
    name, cpu = config.actor_rollout_ref.rollout.name, config.trainer.device == CPU
    facts = facts_of(name)
    # On the CPU, an engine's own check knows more.
    if facts.package and find_spec(facts.package) is None and not (cpu and facts.check_ready):
        value = f"actor_rollout_ref.rollout.name={name}, and {facts.package} is not installed"
        fix = f"{facts.install or f'install {facts.package}'}, or set actor_rollout_ref.rollout.name"
        error = ConfigError(value, rule="the engine of a policy is installed on every node of the run", fix=fix)
        yield unless_elsewhere(config, error)
    yield from _untested(name)
    yield from combinations("installed", config, lacks=lacking(name), cupy=find_spec("cupy") is not None)
    # A model may have settings of its own, so only a name that is nearly a common one is one mistyped.
    for name in map(str, config.actor_rollout_ref.model.get("override_config") or {}):
        if name not in OVERRIDDEN and (meant := closest(name, OVERRIDDEN, cutoff=0.9)):
            value = f"actor_rollout_ref.model.override_config.{name}"
            reason = "the name is added to the model's config, and nothing reads it there"
            yield ConfigWarning(value, reason=reason, fix=f"did you mean {meant}?")
    used = attention(config)
    if cpu and is_flash(used):
        yield ConfigError(
            f"{ATTENTION}={used} on the CPU", rule="flash-attn computes on GPUs only", fix=f"set ++{ATTENTION}=sdpa"
        )
    # Without flash_attn, transformers downloads the same kernel if the package `kernels` is there.
    elif not cpu and used == DEFAULT_ATTENTION and not any(find_spec(package) for package in ("flash_attn", "kernels")):
        rule = f"verl loads models with attn_implementation={DEFAULT_ATTENTION} where no other is set"
        fix = f"set ++{ATTENTION}=sdpa, or install flash-attn: docs/gpu-quickstart.md has the command"
        error = ConfigError("flash_attn is not installed", rule=rule, fix=fix)
        yield unless_elsewhere(config, error)


def _untested(engine: str) -> Iterator[ConfigWarning]:
    """An engine of a version that was not compared with what verl-mas uses of it, and what differs in it."""
    known = contracts().get(engine)
    if known and (version := known.untested):
        oldest, newest = known.tested
        found = "; ".join(missing_names(known.used)) or "all names that verl-mas uses are there"
        yield ConfigWarning(
            f"{engine} {version} is installed",
            reason=f"verl-mas was compared with {oldest} to {newest}; of this one: {found}",
            fix=f"install {engine}=={oldest}, which verl 0.9.1 requires",
        )


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


# Whether a model folder is whole: its JSON files, its chat template, its weights. No tensor is read.


JSON_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
WEIGHTS = ("*.safetensors", "*.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Larger JSON files are looked at from both ends only.
PARSED_BYTES = 2 << 20
RULE = "it is a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"


def check_model(config: DictConfig) -> Iterator[Problem]:
    """A local folder must hold a model, its tokenizer and a chat template; a name on the hub is looked up in the cache
    of this machine."""
    model = config.actor_rollout_ref.model
    path = model.path
    if not isinstance(path, str) or not path.strip():
        yield ConfigError(f"actor_rollout_ref.model.path={path!r}", rule=RULE, fix=FIX)
    elif is_remote(path):
        yield _not_checked(path, "it is copied when the run starts")
    elif is_hub_name(path):
        if local_folder(path) is None:
            offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
            why = ", and HF_HUB_OFFLINE forbids to download it" if offline else ""
            yield _not_checked(path, f"it is not in the Hugging Face cache of this machine{why}")
    elif not (folder := Path(path).expanduser()).is_dir():
        command = made_by().get(str(Path(path).parent))
        fix = f"create it with: {command}" if command else FIX
        yield unless_elsewhere(config, ConfigError(f"actor_rollout_ref.model.path={path}", rule=RULE, fix=fix))
    else:
        yield from check_folder(folder, model.get("custom_chat_template"))
    if adapter := model.get("lora_adapter_path"):
        yield from _adapter(config, str(adapter))


def _adapter(config: DictConfig, path: str) -> Iterator[Problem]:
    if is_remote(path) or is_hub_name(path):
        return  # Not looked at.
    folder = Path(path).expanduser()
    if lacking := [name for name in ("adapter_config.json", "adapter_model.*") if not any(folder.glob(name))]:
        value = f"actor_rollout_ref.model.lora_adapter_path={path} has no {' and no '.join(lacking)}"
        rule = "it is the folder of an adapter that PEFT saved, or its name on the hub"
        fix = "set it to the folder that holds adapter_config.json, or to null to start with a new adapter"
        yield unless_elsewhere(config, ConfigError(value, rule=rule, fix=fix))
    if endless := list(_endless(folder)):
        yield from endless
        return
    yield from raised_by(read_json, folder / "adapter_config.json")
    yield from _weights(folder)


def _not_checked(path: str, why: str) -> ConfigWarning:
    fix = "download it and give its folder" if is_remote(path) else f"run hf download {path}, and check again"
    return ConfigWarning(f"actor_rollout_ref.model.path={path}", reason=f"not checked: {why}", fix=fix)


def check_folder(folder: Path, custom_chat_template: str | None = None) -> Iterator[ConfigError]:
    if endless := list(_endless(folder)):
        yield from endless
        return
    for any_of, noun, fix in (
        (["config.json"], "a model's config.json", "save the model with save_pretrained"),
        (list(TOKENIZERS), "a tokenizer", "save the tokenizer beside the model with tokenizer.save_pretrained"),
        (list(WEIGHTS), "weights", "save the model with save_pretrained, or download it again"),
    ):
        if not any(any(folder.glob(name)) for name in any_of):
            yield ConfigError(f"{folder} has no {any_of[0]}", rule=f"a model folder holds {noun}", fix=fix)
    unreadable = [error for name in JSON_FILES for error in raised_by(read_json, folder / name)]
    yield from unreadable
    yield from _tokenizer(folder / "tokenizer.json")
    chat = None if unreadable else ChatTemplate.of(folder, custom_chat_template)
    if not unreadable and (chat is None or "messages" not in chat.template):
        yield ConfigError(
            f"{folder} has {'no chat template' if chat is None else 'a chat template without messages'}",
            rule="prompts are lists of messages, which a chat template renders as text",
            fix="set tokenizer.chat_template and save the tokenizer again, or use an instruct model",
        )
    yield from _weights(folder)
    yield from _fits(folder)


def _fits(folder: Path) -> Iterator[ConfigError]:
    """Whether config.json is that of the weights: for what does not fit transformers takes random numbers."""
    config, shapes = readable_json(folder / "config.json"), dict[str, Sequence[int]]()
    for file in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, ValueError):
            shapes |= shapes_in(file)
    size = {key: value for key, value in config.items() if type(value) is int}
    width, heads, layers = (size.get(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    named = config.get("architectures", [""])
    numbers = [int(found[1]) for name in shapes if (found := re.search(r"\.(?:layers|h)\.(\d+)\.", name))]
    embedding = next((list(shape) for name, shape in shapes.items() if name.endswith(".embed_tokens.weight")), None)
    stated = [size.get("vocab_size"), width]
    for wrong, value in (
        (
            not isinstance(named, list) or len(named) != 1,
            f"architectures={named}, and verl loads the one that it names",
        ),
        (
            width and heads and "head_dim" not in config and width % heads,
            f"{heads} attention heads of a width of {width}",
        ),
        (
            numbers and max(numbers) + 1 < (layers or 0),
            f"{layers} layers, and weights of {max(numbers, default=0) + 1}",
        ),
        (
            None not in stated and embedding not in (None, stated),
            f"an embedding of {stated}, and weights of {embedding}",
        ),
    ):
        if wrong:
            rule, fix = "config.json describes the weights beside it", "save or download the model again"
            yield ConfigError(f"{folder / 'config.json'} has {value}", rule=rule, fix=fix)
    if shapes and all(name.startswith("module.") for name in shapes):
        rule = "tensors have the names of the model's parameters"
        yield ConfigError(
            f"the tensors of {folder} are named module.*", rule=rule, fix="save the model itself, not DDP"
        )


def _tokenizer(file: Path) -> Iterator[ConfigError]:
    """A tokenizer of 150,000 tokens takes long to parse; if it is cut, its last brace is missing."""
    if not file.is_file():
        return
    if file.stat().st_size <= PARSED_BYTES:
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001  it raises no other
            yield _broken(file, f"is no tokenizer: {error}")
        return
    with file.open("rb") as opened:
        start = opened.read(64).lstrip()
        opened.seek(-64, os.SEEK_END)
        if not (start.startswith(b"{") and opened.read().rstrip().endswith(b"}")):
            yield _broken(file, "is cut")


def _weights(folder: Path) -> Iterator[ConfigError]:
    for index in INDEXES:
        unreadable = list(raised_by(read_json, folder / index))
        yield from unreadable
        named = {} if unreadable else read_json(folder / index).get("weight_map")
        for name in sorted(set(map(str, named.values()))) if isinstance(named, dict) else ():
            if not (folder / name).exists():
                yield _broken(folder / name, f"is missing; {index} names it")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            shapes_in(file)
        except ValueError as error:
            yield _broken(file, f"is not whole: {error}")
    yield from (_broken(file, "is empty") for file in sorted(folder.glob("*.bin")) if not file.stat().st_size)


def _endless(folder: Path) -> Iterator[ConfigError]:
    """Files that cannot be read to an end."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not (path.is_file() or path.is_dir()):
            yield _broken(path, "is a pipe, a device or a link to nothing")


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} {why}", rule="every file of the weights is whole", fix="save or download the model again"
    )
