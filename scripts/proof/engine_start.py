"""`python engine_start.py MODEL`: start the installed vLLM and sample with top_p, which uses FlashInfer's sampler.

Before the start, it prints the compiler, package and environment variables that vLLM finds on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.util import find_spec


def main(model: str) -> None:
    names = ("CUDA_HOME", "VLLM_USE_FLASHINFER_SAMPLER")
    found = {"nvcc": shutil.which("nvcc"), "flashinfer": bool(find_spec("flashinfer"))}
    sys.stdout.write(json.dumps(found | {name: os.environ.get(name) for name in names}) + "\n")
    sys.stdout.flush()
    from vllm import LLM, SamplingParams

    sizes = {"max_model_len": 512, "gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 1 << 30}
    engine = LLM(model, enforce_eager=True, **sizes)
    sampling = SamplingParams(max_tokens=16, top_p=0.9, top_k=20, ignore_eos=True)
    [reply] = engine.generate([{"prompt_token_ids": [*range(5, 45)]}], sampling, use_tqdm=False)
    sys.stdout.write(f"sampled {len(reply.outputs[0].token_ids)} tokens\n")


if __name__ == "__main__":
    main(sys.argv[1])
