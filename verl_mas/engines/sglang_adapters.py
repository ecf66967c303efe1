"""Several LoRA adapters on the base of one SGLang server of verl, which itself serves one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from verl_mas.config.adapters import Adapter, read_table
from verl_mas.engines.adapters import by_policy, require, wanted, wants
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.io_struct import GenerateReqInput
    from verl.workers.rollout.replica import TokenOutput

ENGINE = "sglang"
# SGLang's, which is not installed where this is checked.
Manager: TypeAlias = Any


class AdapterServer:
    """Mix in before verl's server. Without adapters it changes nothing."""

    tokenizer_manager: Manager
    _manager: AdapterManager | None = None

    @property
    def adapters(self) -> dict[str, Adapter]:
        return read_table(self.config.custom)  # type: ignore[attr-defined]

    async def launch_server(self, *args: object, **kwargs: object) -> None:
        if table := self.adapters:
            # The bare base takes a place, too.
            options = {"max_loras_per_batch": len(table) + 1, **(self.config.engine_kwargs.get(ENGINE) or {})}  # type: ignore[attr-defined]
            self.config.engine_kwargs[ENGINE] = options  # type: ignore[attr-defined]
        await super().launch_server(*args, **kwargs)  # type: ignore[misc]
        if table:
            self._manager = self.tokenizer_manager = AdapterManager(self.tokenizer_manager, table)

    async def generate(self, *args: object, adapter: str | None = None, **kwargs: object) -> TokenOutput:
        require(adapter, self.adapters, ready=self._manager is not None and self._manager.ready)
        with wants(adapter):
            output: TokenOutput = await super().generate(*args, **kwargs)  # type: ignore[misc]
            return output

    async def set_global_steps(self, global_steps: int) -> None:
        """Called when new weights have arrived."""
        await super().set_global_steps(global_steps)  # type: ignore[misc]
        if self._manager:
            self._manager.ready = True


class AdapterManager:
    """SGLang's tokenizer manager, in which a request is for the adapter that its caller has named."""

    def __init__(self, manager: Manager, table: Mapping[str, Adapter]):
        self._manager, self._table = manager, table
        self.ready = False
        """Whether the engine has received weights."""

    def __getattr__(self, name: str) -> Manager:
        return getattr(self._manager, name)

    def generate_request(self, obj: GenerateReqInput, request: object = None) -> AsyncIterator[Fields]:
        policy = wanted()
        # In place of the one name that verl gives to every request.
        obj.lora_path = None if policy is None else self._table[policy].name
        replies: AsyncIterator[Fields] = self._manager.generate_request(obj, request)
        return replies


class AdapterSender:
    """Mix in before verl's adapter, in the training workers. Without adapters it changes nothing."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: object,
    ) -> None:
        table = read_table(self.config.custom)  # type: ignore[attr-defined]
        if not table:
            await super().update_weights(weights, global_steps, wire_format, **kwargs)  # type: ignore[misc]
            return
        configs = cast("dict[str, Fields]", kwargs["peft_config"])
        await self._init_server_adapter()  # type: ignore[attr-defined]
        # In every worker: the tensors are gathered while the stream is read.
        tensors = by_policy(weights, table)
        if self._engine is None or not self._is_server_tp_leader():  # type: ignore[attr-defined]
            return
        loaded = {model["id"] for model in (await self._engine.available_models())["data"]}  # type: ignore[attr-defined]
        for policy, adapter in table.items():
            if adapter.name in loaded:
                await self._engine.unload_lora_adapter(adapter.name)  # type: ignore[attr-defined]
            await self._load(adapter.name, configs[policy], tensors[policy])
        await self._engine.flush_cache()  # type: ignore[attr-defined]
        if global_steps is not None:
            await self.server_actor.set_global_steps.remote(global_steps)  # type: ignore[attr-defined]

    async def _load(self, name: str, config: Fields, tensors: dict[str, torch.Tensor]) -> None:
        from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput

        config, serialized = self.wrap_lora_params(config, tensors.items())  # type: ignore[attr-defined]
        request = LoadLoRAAdapterFromTensorsReqInput(
            lora_name=name, config_dict=config, serialized_named_tensors=serialized
        )
        await self._engine.load_lora_adapter_from_tensor(request)  # type: ignore[attr-defined]
