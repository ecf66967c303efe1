"""verl's own `rollout.name=vllm` on a machine without a GPU, with vLLM's CPU build.

Same servers, requests and sampling as on a GPU; three parts are replaced: how new weights enter the engine, what the
engine is started with, and what happens when it is lost. `verl_mas.engines.kinds.vllm` registers these classes with
verl on the CPU platform. They are no part of verl-mas's wheel: only the environment of `make vllm-cpu` can use them.
"""
