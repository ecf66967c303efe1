"""Code inside vLLM's worker process: it loads the weights of several adapters, which arrive in one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.models.utils import WeightsMapper

from verl_mas.engines.adapters import by_policy
from verl_mas.engines.kinds.vllm import PATH
from verl_mas.errors import EngineLost
from verl_mas.verl_.types import Fields, Passed, Untyped


class AdapterExtension(vLLMColocateWorkerExtension):
    """verl's extension, for a base with any number of adapters."""

    # Attributes of vLLM's worker, into which this class is mixed.
    model_runner: Untyped
    remove_lora: Callable[[int], object]
    add_lora: Callable[[TensorLoRARequest], object]
    mas_adapters: Mapping[str, int] = MappingProxyType({})  # policy -> vLLM's number of its adapter

    def __new__(cls, **kwargs: Passed) -> AdapterExtension:
        # verl 0.9.1 calls `get_unstacked_mapper` for every adapter. vLLM 0.29 renamed it to `get_rename_mapper`.
        # vLLM 0.24 has neither method, and verl then calls neither.
        if hasattr(WeightsMapper, "get_rename_mapper") and not hasattr(WeightsMapper, "get_unstacked_mapper"):
            WeightsMapper.get_unstacked_mapper = WeightsMapper.get_rename_mapper
        extension: AdapterExtension = super().__new__(cls, **kwargs)
        return extension

    def set_adapters(self, adapters: Mapping[str, int]) -> None:
        """Set the numbers of the adapters. The server calls this, so that server and worker use the same numbers."""
        self.mas_adapters = adapters

    def _update_weights(
        self, weights: list[tuple[str, torch.Tensor]], peft_config: Fields, base_sync_done: bool
    ) -> None:
        """Replace the weights of all adapters. verl has collected the whole stream, and no token is computed during
        this call. `peft_config`: policy -> configuration."""
        if not self.mas_adapters:
            super()._update_weights(weights, peft_config, base_sync_done)
            return
        tensors = by_policy(weights, self.mas_adapters)
        for policy, number in self.mas_adapters.items():
            self._require_modules(policy, tensors[policy])
            self.remove_lora(number)
            own = {"peft_config": peft_config[policy], "lora_tensors": tensors[policy]}
            self.add_lora(TensorLoRARequest(lora_name=policy, lora_int_id=number, lora_path=PATH, **own))

    def _require_modules(self, policy: str, tensors: dict[str, torch.Tensor]) -> None:
        """Raise EngineLost for weights of modules on which vLLM has no adapters, because vLLM would load such weights
        and never use them."""
        manager = self.model_runner.lora_manager._adapter_manager  # noqa: SLF001  as verl does
        packed = manager.packed_modules_mapping
        parts = [part for name in manager.supported_lora_modules for part in packed.get(name, [name])]
        known = {part.rpartition(".")[2] for part in parts}
        unknown = sorted({key.split(".")[-3] for key in tensors} - known)
        if unknown:
            names = ", ".join(sorted(known))
            raise EngineLost(f"adapter {policy} has weights of {', '.join(unknown)}; vLLM has adapters on {names}")
