"""Run verl's own `rollout.name=vllm` on a machine without a GPU, with vLLM's CPU build.

Servers, requests and sampling are the same as on a GPU. Three parts are replaced: the loading of new weights, the
settings with which an engine starts, and the handling of a lost engine. `verl_mas.engines.kinds.vllm` registers these
classes with verl on the CPU platform. They are not part of verl-mas's wheel, because only the environment of
`make vllm-cpu` can use them.
"""
