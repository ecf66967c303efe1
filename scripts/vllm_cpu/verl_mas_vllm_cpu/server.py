"""verl's vLLM server and replica, with the settings that a CPU needs."""

from __future__ import annotations

import dataclasses
import os
from argparse import Namespace

import ray
from verl.workers.config import RolloutConfig
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_mas.engines.kinds.vllm import ENGINE, TeamVllm
from verl_mas.engines.stock import OffsetReplica
from verl_mas.verl_.types import Fields, Passed

# These features are off in vLLM's CPU build: it has no GPU memory to release in sleep, and a compiled graph would keep
# computing with the packed weights with which it was traced.
FIXED = {"enable_sleep_mode": False, "free_cache_engine": False, "enforce_eager": True}
# Bytes of the KV cache. By default, vLLM would take half of the machine's memory for it.
KV_CACHE_BYTES = 1 << 30


class CpuVllmServer(TeamVllm, vLLMHttpServer):
    def __init__(self, config: RolloutConfig, *args: Passed, **kwargs: Passed):
        # Do not bind the OMP_NUM_THREADS threads of an engine to cores: all engines would bind to the same cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        options = dict(config.engine_kwargs.get(ENGINE) or {})
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            options.setdefault("kv_cache_memory_bytes", KV_CACHE_BYTES)
        fixed: Fields = {**FIXED, "engine_kwargs": {**config.engine_kwargs, ENGINE: options}}
        super().__init__(dataclasses.replace(config, **fixed), *args, **kwargs)

    def _get_worker_extension_cls(self) -> str:
        return "verl_mas_vllm_cpu.worker.CpuWorkerExtension"

    def _with_slots(self, args: Namespace) -> Namespace:
        # For requests without an adapter, the CPU build uses the adapter slot -1, which is the last slot. So add one
        # more slot, which stays empty: vllm-project/vllm#48421.
        args = super()._with_slots(args)
        if self.adapters:
            args.max_loras = args.max_cpu_loras = args.max_loras + 1
        return args


class CpuVllmReplica(OffsetReplica, vLLMReplica):
    def __init__(self, *args: Passed, **kwargs: Passed) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
