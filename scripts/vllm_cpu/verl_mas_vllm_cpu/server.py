"""verl's vLLM server and replica, started the way a CPU needs."""

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

# What vLLM's CPU build cannot do: there is no memory to put to sleep, and a compiled graph
# would keep computing with the packed weights it was traced with.
FIXED = {"enable_sleep_mode": False, "free_cache_engine": False, "enforce_eager": True}
# By default vLLM takes half of the machine's memory for its cache.
KV_CACHE_BYTES = 1 << 30


class CpuVllmServer(TeamVllm, vLLMHttpServer):
    def __init__(self, config: RolloutConfig, *args: Passed, **kwargs: Passed):
        # OMP_NUM_THREADS threads per process, not bound to cores: several engines would bind to the same ones.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        options = dict(config.engine_kwargs.get(ENGINE) or {})
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
            options.setdefault("kv_cache_memory_bytes", KV_CACHE_BYTES)
        fixed: Fields = {**FIXED, "engine_kwargs": {**config.engine_kwargs, ENGINE: options}}
        super().__init__(dataclasses.replace(config, **fixed), *args, **kwargs)

    def _get_worker_extension_cls(self) -> str:
        return "verl_mas_vllm_cpu.worker.CpuWorkerExtension"

    def _with_slots(self, args: Namespace) -> Namespace:
        # Of requests in a batch that have no adapter, the CPU build takes the place -1, which is the last one. So that
        # stays empty: vllm-project/vllm#48421.
        args = super()._with_slots(args)
        if self.adapters:
            args.max_loras = args.max_cpu_loras = args.max_loras + 1
        return args


class CpuVllmReplica(OffsetReplica, vLLMReplica):
    def __init__(self, *args: Passed, **kwargs: Passed) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
