"""verl's FSDP engines on the CPU, without offloading."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import torch
from torch.distributed.fsdp import _init_utils
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class _NothingToOffload:
    """Offloaded parameters live in pinned memory on the CPU; here they are on the CPU, and nothing can be pinned."""

    engine_config: FSDPEngineConfig

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        original = self.engine_config
        self.engine_config = dataclasses.replace(original, forward_only=False, offload_policy=False)
        try:
            built: torch.nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]
            return built
        finally:
            self.engine_config = original


class CpuEngineWithLMHead(_NothingToOffload, FSDPEngineWithLMHead): ...


class CpuEngineWithValueHead(_NothingToOffload, FSDPEngineWithValueHead): ...


def allow_fsdp1(transformer_impl: ModuleType) -> None:
    """FSDP1 wants its parameters on a GPU: torch when it broadcasts them at the start, verl when it reads them."""
    _init_utils._check_module_states_for_sync_module_states = _nothing  # type: ignore[assignment]  # noqa: SLF001
    transformer_impl.load_fsdp_model_to_gpu = _nothing  # type: ignore[attr-defined]


def _nothing(parameters: object) -> None:
    """They are on the device already."""
