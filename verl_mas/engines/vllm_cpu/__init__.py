"""verl's own `rollout.name=vllm` on a machine without a GPU, with vLLM's CPU build.

Same servers, requests and sampling as on a GPU; three parts are replaced: how new weights enter the engine, what
the engine is started with, and what happens when it is lost. `engines.kinds.vllm` registers it on the CPU platform.
"""

from __future__ import annotations

# By name: their modules need vLLM, and the server is a kind of `engines.kinds.vllm`.
ADAPTER = "verl_mas.engines.vllm_cpu.adapter.CpuServerAdapter"
REPLICA = "verl_mas.engines.vllm_cpu.server.CpuVllmReplica"
