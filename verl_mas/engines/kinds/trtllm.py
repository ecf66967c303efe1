"""verl's TensorRT-LLM engine, unchanged."""

from verl_mas.engines.facts import ENGINES, EngineFacts

ENGINES.register("trtllm")(EngineFacts(package="tensorrt_llm", gpu_fraction=True, many=False))
