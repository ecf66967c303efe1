"""Compare the embedded engine with one static padded `generate`: `python benchmarks/engine.py [--quick]`.

Times are CPU seconds of one thread, so other programs do not change the ratios.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import use_onednn
from verl_mas.testing.tiny_model import tiny_model

CONCURRENT, PROMPT = 64, 32


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def static(model: PreTrainedModel, prompts: list[list[int]], longest: int) -> None:
    model.generate(
        torch.tensor(prompts),
        max_new_tokens=longest,
        min_new_tokens=longest,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
    )


def continuous(model: PreTrainedModel, prompts: list[list[int]], lengths: list[int]) -> None:
    batcher = ContinuousBatcher(model, max_length=1024, decode=str)
    for prompt, length in zip(prompts, lengths, strict=True):
        batcher.submit(prompt, RequestSampling(max_tokens=length))
    while not batcher.idle:
        batcher.step()


def compare(parameters: int, scale: float, repeats: int) -> dict[str, float]:
    """Return the engine's speed divided by the speed of static `generate`.

    For mixed lengths (`share`), it is further divided by the ideal gain. For equal lengths (`equal`), it is not.
    """
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model(folder, parameters=parameters)
        stock = AutoModelForCausalLM.from_pretrained(path).eval()
        served = AutoModelForCausalLM.from_pretrained(path).eval()
    use_onednn(served)
    prompts = [[chance.randrange(3, 259) for _ in range(PROMPT)] for _ in range(CONCURRENT)]
    mixed = [max(1, round(scale * 8 * 32 ** chance.random())) for _ in range(CONCURRENT)]
    equal = [max(1, round(scale * 64))] * CONCURRENT
    for warm_up in (stock, served):
        continuous(warm_up, prompts, [2] * CONCURRENT)
    static(stock, prompts, 2)

    ideal = CONCURRENT * max(mixed) / sum(mixed)
    padded = seconds(lambda: static(stock, prompts, max(mixed)), repeats)
    gain = padded / seconds(lambda: continuous(served, prompts, mixed), repeats)
    scheduling = padded / seconds(lambda: continuous(stock, prompts, mixed), repeats)
    level = seconds(lambda: static(stock, prompts, equal[0]), repeats) / seconds(
        lambda: continuous(served, prompts, equal), repeats
    )
    report(
        f"{stock.num_parameters() / 1e6:.1f}M parameters, {CONCURRENT} concurrent, "
        f"{min(mixed)} to {max(mixed)} new tokens",
        f"  mixed lengths: {gain:.2f}x of static, ideal {ideal:.2f}x, share {gain / ideal:.2f} "
        f"(share by batching alone, with torch's own linears: {scheduling / ideal:.2f})",
        f"  equal lengths: {level:.2f}x of static",
    )
    return {"share": gain / ideal, "equal": level}


def report(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens on the large model")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    tiny = compare(100_000, scale=1, repeats=2)
    large = compare(100_000_000, scale=0.125 if quick else 1, repeats=1)
    report(
        f"0.1M: share {tiny['share']:.2f}, equal {tiny['equal']:.2f} (both wanted >= 0.5)",
        f"100M: share {large['share']:.2f} (wanted >= 0.75), equal {large['equal']:.2f} (wanted >= 0.8)",
    )


if __name__ == "__main__":
    main()
