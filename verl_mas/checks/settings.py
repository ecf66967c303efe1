"""Keys that verl does not know, and values that it does not take: asked of its YAML, its dataclasses and registries."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.refusals import Problem, unresolved
from verl_mas.checks.rules.engines import engines_of_verl
from verl_mas.config.hydra import packages
from verl_mas.config.merge import SECTION, leaves
from verl_mas.config.run import CORRECTION, Run
from verl_mas.config.values import Above, Count, Hint, NotNegative, Positive, Range, Share, Temperature, core_type
from verl_mas.config.values import problems as problems_of
from verl_mas.config.verl_settings import (
    SettingDifference,
    SettingsSection,
    differences,
    section_at,
    settings_of,
)
from verl_mas.engines.facts import ENGINES
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest

ENGINE_OPTIONS = f"{SECTION}.rollout.engine_kwargs"
OVERRIDES = re.compile(r"^mas\.policies\.[^.]+\.overrides\.")
REFERS = re.compile(r"\$\{\s*(?:oc\.select:\s*)?(\w+)")
Whole = Annotated[int, Range(0)]
AllOr = Literal[-1] | Count  # -1: all, or never
Every = Annotated[int, Range(-1)]
Probability = Annotated[float, Above(0), Range(high=1)]


def losses() -> Iterable[str]:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return POLICY_LOSS_REGISTRY


def loggers() -> Iterable[str]:
    from verl.utils.tracking import Tracking

    return Tracking.supported_backend


def devices() -> Iterable[str]:
    from verl.plugin.platform.platform_manager import PlatformRegistry

    return ["cuda", "npu", "cpu", *PlatformRegistry.registered_names()]


def _each(names: str, hint: Hint) -> dict[str, Hint]:
    return dict.fromkeys((f"{SECTION}.{name}" if name[0] in "amr" else name for name in names.split()), hint)


# What verl's settings take where verl declares no range or choice, and would fail late or not at all.
VALUES: Mapping[str, Hint] = {
    **_each(
        "actor.ppo_mini_batch_size actor.ppo_max_token_len_per_gpu actor.ppo_epochs rollout.n rollout.prompt_length "
        "rollout.response_length rollout.tensor_model_parallel_size rollout.data_parallel_size rollout.val_kwargs.n "
        "rollout.pipeline_model_parallel_size rollout.max_num_seqs rollout.max_num_batched_tokens "
        "rollout.agent.num_workers actor.ulysses_sequence_parallel_size",
        Count,
    ),
    **_each("rollout.max_model_len actor.ppo_micro_batch_size_per_gpu", Count | None),
    **_each("rollout.log_prob_micro_batch_size_per_gpu ref.log_prob_micro_batch_size_per_gpu", Count | None),
    **_each("rollout.gpu_memory_utilization rollout.top_p rollout.val_kwargs.top_p", Probability),
    **_each("rollout.temperature rollout.val_kwargs.temperature", Temperature),
    **_each("rollout.top_k rollout.val_kwargs.top_k actor.fsdp_config.fsdp_size", AllOr),
    **_each("actor.optim.lr", Annotated[float, Range(0, 10)]),
    **_each("actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high actor.kl_loss_coef", NotNegative),
    **_each("actor.grad_clip", Positive),
    **_each("model.lora_rank model.lora_alpha", Whole),
    f"{SECTION}.model.path": str,
    "data.train_batch_size": Count,
    "data.max_prompt_length": Count,
    "data.max_response_length": Count,
    "data.train_max_samples": AllOr,
    "data.val_max_samples": AllOr,
    "data.truncation": Literal["left", "right", "middle", "error"],
    "data.train_files": str | list[str] | None,
    "data.val_files": str | list[str] | None,
    "data.reward_fn_key": str,
    "trainer.nnodes": Count,
    "trainer.n_gpus_per_node": Count,
    "trainer.total_epochs": Count,
    "trainer.total_training_steps": Count | None,
    "trainer.save_freq": Every,
    "trainer.test_freq": Every,
    "trainer.resume_mode": Literal["auto", "disable", "resume_path"],
    "trainer.v1.colocate_async.num_warmup_batches": NotNegative,
    "trainer.v1.separate_async.num_warmup_batches": NotNegative,
    "trainer.v1.sampler.max_off_policy_strategy": Literal["drop", "wait"],
    "trainer.v1.sampler.max_off_policy_threshold": Whole | None,
    "algorithm.gamma": Share,
    f"{CORRECTION}.rollout_is": Literal["token", "sequence"] | None,
    f"{CORRECTION}.loss_type": Literal["ppo_clip", "reinforce"],
    "ray_kwargs.ray_init.num_cpus": Whole | None,
    "ray_kwargs.ray_init.num_gpus": Whole | None,
    "reward.num_workers": Count,
}
# Choices that verl has in a registry.
CHOICES: Mapping[str, Callable[[], Iterable[str]]] = {
    f"{SECTION}.actor.policy_loss.loss_mode": losses,
    "trainer.logger": loggers,
    "trainer.device": devices,
}


def takes(path: str) -> Hint | None:
    """What a setting of verl takes beyond its declared type."""
    if path in CHOICES:
        names: Hint = Literal[tuple(CHOICES[path]())]
        return names | list[names] if path == "trainer.logger" else names  # type: ignore[valid-type]
    return VALUES.get(path)


def check_keys(config: DictConfig) -> Iterator[Problem]:
    """Keys that verl does not read. `config` is as Hydra composed it."""
    verl, options = settings_of(config), OmegaConf.select(config, ENGINE_OPTIONS)
    for name in map(str, options) if isinstance(options, DictConfig) else ():
        if name not in ENGINES and name not in (known := engines_of_verl()):
            rule = "its keys are the names of engines, each with the options of the engine"
            yield ConfigError(f"{ENGINE_OPTIONS}.{name} is not a setting", rule=rule, fix=nearest(name, known))
    # Keys of the user at the top that an interpolation reads, `${my_rate}`.
    raw = OmegaConf.to_container(config, resolve=False)
    used = {name for _, value in leaves(raw) for name in REFERS.findall(str(value))}
    for difference in differences(config, verl):
        if difference.known or difference.path in used:
            continue
        error = unknown(difference, verl)
        if difference.verl_path.startswith("data.") and OmegaConf.select(config, "data.custom_cls.path"):
            yield ConfigWarning(error.value, f"{error.rule}; only your data.custom_cls can", error.fix)
        else:
            yield error


def unknown(difference: SettingDifference, verl: SettingsSection) -> ConfigError:
    """A key that verl does not read, with the settings that are meant: of this name elsewhere, or of a similar name."""
    assert difference.section is not None
    keys = list(dict.fromkeys([*difference.section.keys, *(() if difference.section.path else _groups())]))
    prefix = difference.path.removesuffix(difference.key)
    meant = [
        path for path in [".".join(path) for path, _ in leaves(verl.yaml)] if path.rpartition(".")[2] == difference.key
    ]
    meant = meant or [prefix + name for name in difflib.get_close_matches(difference.key, keys, n=3)]
    rule = f"verl reads no key {difference.key!r} in {difference.section.path or 'the configuration'}"
    fix = f"did you mean {', '.join(meant[:3])}?" if meant else f"known: {', '.join(keys)}"
    return ConfigError(f"{difference.path} is not a setting", rule=rule, fix=fix)


@cache
def _groups() -> list[str]:
    """The groups of our configuration: `+mas=`, `+platform=`."""
    folders = [entry for package in packages() for entry in files(package).iterdir()]
    return list(dict.fromkeys(folder.name for folder in folders if folder.is_dir() and "_" not in folder.name))


def check_values(config: DictConfig) -> Iterator[Problem]:
    """Values that verl does not take: type, range, choice, interpolations."""
    for difference in differences(config, settings_of(config), single=VALUES):
        if difference.known:
            yield from _of_value(difference)


def check_overrides(run: Run) -> Iterator[Problem]:
    """The same for the overrides of policies."""
    verl = settings_of(run.config)
    for name, spec in run.mas.policies.items():
        for key, own, path in (
            ("overrides", spec.overrides, SECTION),
            ("rollout_correction", spec.rollout_correction, CORRECTION),
        ):
            for found in differences(own, section_at(path, verl), f"mas.policies.{name}.{key}", VALUES):
                yield from _of_value(found) if found.known else [unknown(found, verl)]


def _of_value(difference: SettingDifference) -> Iterator[Problem]:
    try:
        value = difference.value()
    except OmegaConfBaseException as error:
        yield unresolved(error)
        return
    section, path = difference.section, difference.path
    own = takes(difference.verl_path or OVERRIDES.sub(f"{SECTION}.", path))
    if section is None:
        # In a section that takes any key, some are known all the same.
        yield from problems_of(own, value, path) if own else ()
        return
    hint: Hint = own or difference.hint
    kind = core_type(hint)
    if section.below(difference.key) is None and not (inspect.isclass(kind) and issubclass(kind, dict)):
        yield from problems_of(hint, value, path) if get_origin(kind) is not dict else ()
    elif value is not None and not isinstance(value, Mapping):
        yield ConfigError(f"{path}={value!r}", rule="this is a section, not a value", fix=f"set {path}.<key>")
