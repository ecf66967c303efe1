"""Compare four ways to serve 32 requests on the CPU: `python benchmarks/engine_choice.py MODEL [--tokens 24]`.

The ways are static `generate`, the embedded engine with torch's linear layers, the embedded engine with oneDNN's, and
transformers' own continuous batching. The script prints tokens per CPU second with one torch thread.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import torch
from engine import continuous, static
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from verl_mas.engines.transformers.server import use_onednn

REQUESTS, PROMPT = 32, 32


def load(path: str, attention: str = "sdpa") -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()


def managed(model: PreTrainedModel, prompts: list[list[int]], tokens: int) -> None:
    settings = GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0
    )
    model.generate_batch(inputs=prompts, generation_config=settings, progress_bar=False, warmup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(0)
    prompts = [[chance.randrange(3, 250) for _ in range(PROMPT)] for _ in range(REQUESTS)]
    lengths = [options.tokens] * REQUESTS

    def show(name: str, work: Callable[[], None]) -> None:
        work()
        start = time.process_time()
        work()
        print(f"{name:30} {REQUESTS * options.tokens / (time.process_time() - start):8.0f} tokens per CPU second")

    stock, ours, paged = load(options.model), load(options.model), load(options.model, "paged|sdpa")
    show("static generate", lambda: static(stock, prompts, options.tokens))
    show("embedded, torch's linears", lambda: continuous(ours, prompts, lengths))
    use_onednn(ours)
    show("embedded engine", lambda: continuous(ours, prompts, lengths))
    show("transformers' manager", lambda: managed(paged, prompts, options.tokens))


if __name__ == "__main__":
    main()
