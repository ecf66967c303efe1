"""What `team.yaml` has of verl's configuration: how calls of tools are read, and how answers are scored."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.schema import FreeSettings
from verl_mas.run_folder.secrets import bare_address

_MULTI_TURN, _REWARD = "actor_rollout_ref.rollout.multi_turn", "reward"
CUSTOM, SANDBOX = f"{_REWARD}.custom_reward_function", f"{_REWARD}.sandbox_fusion"
REWARD_MODEL = f"{_REWARD}.reward_model.enable"
SETTINGS = (
    f"{_MULTI_TURN}.format",
    f"{_MULTI_TURN}.max_user_turns",
    f"{_MULTI_TURN}.max_assistant_turns",
    f"{_MULTI_TURN}.max_parallel_calls",
    f"{_MULTI_TURN}.max_tool_response_length",
    f"{_MULTI_TURN}.tool_response_truncate_side",
    "data.prompt_key",
    f"{CUSTOM}.path",
    f"{CUSTOM}.name",
    f"{CUSTOM}.reward_kwargs",
    f"{_REWARD}.reward_manager.source",
    f"{_REWARD}.reward_manager.name",
    f"{_REWARD}.reward_manager.module.path",
    f"{_REWARD}.reward_manager.module.name",
    f"{_REWARD}.reward_kwargs",
    f"{SANDBOX}.url",
    f"{SANDBOX}.memory_limit_mb",
    REWARD_MODEL,
)
# Sections that verl also reads under an earlier name.
EARLIER = {CUSTOM: "custom_reward_function", SANDBOX: "sandbox_fusion", REWARD_MODEL: "reward_model.enable"}


def settings_of(config: DictConfig) -> FreeSettings:
    """By their dotted names; those that are null are left out."""
    return dict(_found(config))


def _found(config: DictConfig) -> Iterator[tuple[str, object]]:
    for name in SETTINGS:
        earlier = next((name.replace(now, before) for now, before in EARLIER.items() if name.startswith(now)), name)
        value = OmegaConf.select(config, earlier)
        value = OmegaConf.select(config, name) if value is None else value
        if value is not None:
            plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            yield name, bare_address(str(plain)) if name.endswith(".url") else plain
