"""verl's own `rollout.name=vllm` on a machine without a GPU, with vLLM's CPU build.

Same servers, requests and sampling as on a GPU; three parts are replaced: how new weights enter the engine, what
the engine is started with, and what happens when it is lost. `engines.kinds.vllm` registers it on the CPU platform.
"""

from __future__ import annotations

ADAPTER = "verl_mas.engines.vllm_cpu.adapter.CpuServerAdapter"


def load_replica() -> type[object]:
    from verl_mas.engines.vllm_cpu.server import CpuVllmReplica

    return CpuVllmReplica
