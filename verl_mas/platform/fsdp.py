"""verl's FSDP engines on the CPU, without offloading."""

from __future__ import annotations

import dataclasses

import torch
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
