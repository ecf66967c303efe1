"""The attention implementation that verl loads a policy's model with."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION

SETTING = f"{SECTION}.model.override_config.attn_implementation"
DEFAULT = "flash_attention_2"
"""verl's, where the setting is missing (`HFModelConfig` of verl 0.9.1)."""


def attention(config: DictConfig) -> str:
    overrides = OmegaConf.select(config, f"{SECTION}.model.override_config") or {}
    return str(overrides.get("attn_implementation", DEFAULT))


def is_flash(name: str) -> bool:
    """Whether it is one of flash-attn's, which know where a row of a packed micro batch ends."""
    return name.startswith("flash_attention")
