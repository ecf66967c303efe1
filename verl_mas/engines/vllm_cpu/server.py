"""verl's vLLM server and replica, started the way a CPU needs."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import ray
from verl.workers.config import RolloutConfig
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.v1.engine.exceptions import EngineDeadError

from verl_mas.engines.stock import OffsetReplica
from verl_mas.errors import EngineLost

# What vLLM's CPU build cannot do: there is no memory to put to sleep, and a compiled graph
# would go on computing with the packed weights it was traced with.
FIXED = {"enable_sleep_mode": False, "free_cache_engine": False, "enforce_eager": True}
# Left to itself vLLM takes half of the machine's memory for its cache.
KV_CACHE_BYTES = 1 << 30


class CpuVllmServer(vLLMHttpServer):
    def _init_config(self, config: Any) -> RolloutConfig:
        # One set of threads a process, as OMP_NUM_THREADS says: several engines must not bind to the same cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        return dataclasses.replace(super()._init_config(config), **FIXED)

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            engine_kwargs.setdefault("kv_cache_memory_bytes", KV_CACHE_BYTES)

    def _get_worker_extension_cls(self) -> str:
        return "verl_mas.engines.vllm_cpu.worker.CpuWorkerExtension"

    async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
        try:
            return await super().generate(*args, **kwargs)
        except EngineDeadError as error:
            raise _lost() from error

    async def wait_for_requests_to_drain(self) -> None:
        """Called at the end of every sampling phase: the last moment before rows of a dead engine would train."""
        if self.engine.errored:
            raise _lost()
        await super().wait_for_requests_to_drain()


def _lost() -> EngineLost:
    name = ray.get_runtime_context().get_actor_name()
    return EngineLost(f"vLLM engine {name} is dead; what its process said last is above")


class CpuVllmReplica(OffsetReplica, vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
