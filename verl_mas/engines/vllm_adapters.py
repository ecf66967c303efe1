"""Several LoRA adapters on the base of one vLLM server of verl, which itself serves one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from verl_mas.config.adapters import Adapter, read_table
from verl_mas.engines.adapters import require, wanted, wants
from verl_mas.verl_.types import Passed

if TYPE_CHECKING:
    from verl.workers.rollout.replica import TokenOutput
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from vllm.lora.request import LoRARequest
else:
    vLLMHttpServer = object

# vLLM's, which is not installed where this is checked.
Engine: TypeAlias = Any

EXTENSION = "verl_mas.engines.vllm_extension.AdapterExtension"
FIRST_ID = 1000
"""vLLM knows adapters by numbers. Its own warm-up takes those from 1 on, and verl's only adapter has 123."""
PATH = "in memory"


class AdapterServer(vLLMHttpServer):
    """Mix in before verl's server. Without adapters it changes nothing."""

    spare_slots = 0
    """Places for adapters that stay empty."""

    engine: Engine
    _engine: AdapterEngine | None = None

    @property
    def adapters(self) -> dict[str, Adapter]:
        return read_table(self.config.custom)

    def _get_worker_extension_cls(self) -> str:
        stock: str = super()._get_worker_extension_cls()
        return EXTENSION if self.adapters else stock

    async def run_server(self, args: Namespace) -> None:
        await super().run_server(self._with_slots(args))
        if table := self.adapters:
            self._engine = self.engine = AdapterEngine(self.engine, table)
            await self._engine.collective_rpc("set_adapters", args=(self._engine.ids,))

    async def run_headless(self, args: Namespace) -> None:
        """The part of a replica on another node."""
        await super().run_headless(self._with_slots(args))

    def _with_slots(self, args: Namespace) -> Namespace:
        # verl writes `max_loras=1` after the user's own options.
        if self.adapters:
            args.max_loras = args.max_cpu_loras = len(self.adapters) + self.spare_slots
        return args

    async def generate(self, *args: Passed, adapter: str | None = None, **kwargs: Passed) -> TokenOutput:
        # vLLM's engine ends when a request has an adapter that was not loaded.
        require(adapter, self.adapters, ready=self._engine is not None and self._engine.version > 0)
        with wants(adapter):
            output: TokenOutput = await super().generate(*args, **kwargs)
            return output

    async def set_global_steps(self, global_steps: int) -> None:
        """Called when new weights have arrived."""
        await super().set_global_steps(global_steps)
        if self._engine:
            self._engine.version += 1


class AdapterEngine:
    """vLLM's engine, in which a request is for the adapter that its caller has named."""

    def __init__(self, engine: Engine, table: Mapping[str, Adapter]):
        self._engine, self._table = engine, table
        self.ids = {policy: number for number, policy in enumerate(table, FIRST_ID)}
        self.version = 0
        """How often the engine has received weights."""

    def __getattr__(self, name: str) -> Engine:
        return getattr(self._engine, name)

    async def list_loras(self) -> set[int]:
        """verl asks the workers before every request whether its own adapter is loaded. It never is."""
        return set()

    def generate(self, *, lora_request: None, **request: object) -> AsyncGenerator[object, None]:
        replies: AsyncGenerator[object, None] = self._engine.generate(lora_request=self._adapter(), **request)
        return replies

    def _adapter(self) -> LoRARequest | None:
        from vllm.lora.request import LoRARequest

        if (policy := wanted()) is None:
            return None
        # The prefix cache knows adapters by name: without the version, prefixes of old weights would be found.
        versioned = f"{self._table[policy].name}@{self.version}"
        return LoRARequest(lora_name=versioned, lora_int_id=self.ids[policy], lora_path=PATH)
