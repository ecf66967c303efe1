"""The settings that verl accepts. They come from verl's YAML and dataclasses; some sections are passed on to
libraries."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, cast

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.values import Hint, core_type, settable
from verl_mas.util import read_yaml

Tree = Mapping[str, object]

# Open sections, in which any key is accepted, because verl passes the keys on or the user chooses them. Sections that
# are empty in verl's YAML are open, too.
OPEN = (
    r"actor_rollout_ref\.rollout\.engine_kwargs(\.\w+)?",
    r".*\.turbo_config",
    r".*\.wrap_policy",
    r"ray_kwargs\.ray_init\.runtime_env",
    r"global_profiler\.global_tool_config\.nsys\.\w+_nsight_options",
    r"distillation\.teacher_models",
)
# Keys that verl reads with `get` although its YAML lacks them, by section.
ALSO_READ: Mapping[str, tuple[str, ...]] = {
    "": ("mas", "model_engine"),
    "actor_rollout_ref.model.lora": ("fully_sharded_loras",),
    "custom_reward_function": ("reward_kwargs",),
    "data": ("cache_dir", "filter_prompts", "need_tools_kwargs"),
    "reward": ("reward_kwargs",),
    "reward.custom_reward_function": ("reward_kwargs",),
    "reward_model": ("reward_kwargs",),
    "trainer": ("remove_previous_ckpt_in_save", "wandb_proxy"),
    "trainer.v1": ("mas",),
}
RAY_INIT = "ray_kwargs.ray_init"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
DEFAULT_ATTENTION = "flash_attention_2"  # the default of ATTENTION in `HFModelConfig` of verl 0.9.1
# Token budget of a critic's micro batch if `critic.ppo_infer_max_token_len_per_gpu` is not set. verl's V1 trainer reads
# only this setting for a critic, even for the critic's updates.
CRITIC_TOKENS = 32768
_ABSENT = object()


@dataclass(frozen=True)
class SettingsSection:
    """A section of verl's configuration with fixed keys. `declared` is the dataclass that the parent section declares
    for it, if any."""

    path: str
    yaml: Tree
    declared: type | None = None

    @cached_property
    def hints(self) -> Mapping[str, Hint]:
        """The fields of the dataclass that verl makes from the section."""
        target = self.yaml.get("_target_")
        if isinstance(target, str):
            module, _, name = target.rpartition(".")
            return settable(getattr(importlib.import_module(module), name))
        return settable(self.declared) if self.declared else {}

    def _nested(self, key: str) -> type | None:
        """The dataclass of a field; None if the field has another type."""
        kind = core_type(self.hints.get(key))
        return cast(type, kind) if is_dataclass(kind) else None

    @cached_property
    def keys(self) -> list[str]:
        also = ALSO_READ.get(self.path, ())
        if self.path == RAY_INIT:
            import ray

            also = tuple(name for name in inspect.signature(ray.init).parameters if name != "kwargs")
        return [*{**dict.fromkeys(self.yaml), **dict.fromkeys(self.hints), **dict.fromkeys(also)}]

    def knows(self, key: str) -> bool:
        # Test the YAML first, because `keys` imports modules. Private arguments of ray.init, which are undocumented,
        # are accepted.
        return key in self.yaml or key in self.keys or (self.path == RAY_INIT and key.startswith("_"))

    def hint(self, key: str) -> Hint:
        """The type of a key, from the dataclass or from the value in verl's YAML."""
        default = self.yaml.get(key)
        if key not in self.hints:
            # The setting has no declared type, so use the type of its value in verl's YAML.
            if isinstance(default, str):
                return object if _unresolved(default) else str | None
            if isinstance(default, Mapping):
                return dict
            return type(default) if isinstance(default, bool | int | float) else object
        # Allow None as well, because verl declares fields like `int = None`, and its YAML may refer to a null setting.
        empty = default is None or _unresolved(default)
        return self.hints[key] | None if empty else self.hints[key]  # type: ignore[operator]

    def below(self, key: str) -> SettingsSection | None:
        """The section under a key; None for a value, or for an open section."""
        path = f"{self.path}.{key}".lstrip(".")
        default = self.yaml.get(key)
        if any(re.fullmatch(pattern, path) for pattern in OPEN):
            return None
        if isinstance(default, Mapping):
            declared = None if "_target_" in default else self._nested(key)
            # An empty section is open, because verl passes it on.
            return SettingsSection(path, default, declared) if default else None
        declared = self._nested(key)
        return SettingsSection(path, {}, declared) if declared else None


class SettingDifference(NamedTuple):
    """A value that differs from verl's default, or a key that verl does not have. `section` is the section of verl's
    configuration in which the key is, or would be."""

    path: str
    section: SettingsSection
    key: str

    @property
    def known(self) -> bool:
        return self.section.knows(self.key)


def differences(raw: Tree, section: SettingsSection, path: str = "") -> Iterator[SettingDifference]:
    """Find every value that differs from verl's YAML, and every unknown key. `raw` is plain data whose
    interpolations are not resolved."""
    for key, value in raw.items():
        if section.yaml.get(key, _ABSENT) == value:
            continue
        here, below = f"{path}.{key}".lstrip("."), section.below(key)
        if below and isinstance(value, Mapping):
            yield from differences(value, below, here)
        else:
            yield SettingDifference(here, section, key)


@cache
def verl_settings(engine: str = "dp") -> SettingsSection:
    """verl's default configuration. A release of verl has one generated file for each `model_engine`."""
    folder = folder_of("verl") / "trainer" / "config"
    file = folder / f"_generated_ppo_{engine}_trainer.yaml"
    own = read_yaml(file if file.exists() else folder / "_generated_ppo_trainer.yaml")
    # verl merges its settings of TransferQueue into the defaults of the TransferQueue package.
    queue = OmegaConf.merge(read_yaml(folder_of("transfer_queue") / "config.yaml"), own["transfer_queue"])
    return SettingsSection("", {**own, "transfer_queue": OmegaConf.to_container(queue)})


def settings_of(config: DictConfig) -> SettingsSection:
    """verl's default configuration for the training engine that a configuration selects."""
    return verl_settings(str(config.get("model_engine", "dp")))


def section_at(path: str, root: SettingsSection) -> SettingsSection | None:
    """The section with fixed keys at a path; None if the path has no such section."""
    section: SettingsSection | None = root
    for key in path.split(".") if path else ():
        section = section.below(key) if section and section.knows(key) else None
    return section


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def attention(config: DictConfig) -> str:
    """The attention implementation with which verl loads a policy's model."""
    overrides = OmegaConf.select(config, ATTENTION.rpartition(".")[0]) or {}
    return str(overrides.get("attn_implementation", DEFAULT_ATTENTION))


def is_flash(name: str) -> bool:
    """Whether an attention implementation is from flash-attn. Only implementations from flash-attn respect the
    boundaries of rows in a packed micro batch."""
    return name.startswith("flash_attention")


def _unresolved(default: object) -> bool:
    return isinstance(default, str) and (default == "???" or "${" in default)
