"""verl's TensorRT-LLM engine, as verl has it."""

from __future__ import annotations

from verl_mas.engines.facts import ENGINES, EngineFacts

ENGINES.register("trtllm")(EngineFacts(package="tensorrt_llm", gpu_fraction=True))
