"""A program of test_vllm_cpu: vLLM takes new weights twice; prints how far its log-probs are from transformers'."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm import LLM

PROMPT = list(range(5, 45))


def perturb(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def distance(engine: LLM, model: torch.nn.Module) -> float:
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=32, logprobs=0, seed=1, ignore_eos=True)
    [result] = engine.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    reply = list(result.outputs[0].token_ids)
    theirs = torch.tensor([step[token].logprob for token, step in zip(reply, result.outputs[0].logprobs, strict=True)])
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + reply])).logits[0, len(PROMPT) - 1 : -1]
    ours = logits.log_softmax(-1).gather(-1, torch.tensor(reply)[:, None])[:, 0]
    return float((theirs - ours).abs().max())


def sync(engine: LLM, model: torch.nn.Module) -> None:
    from verl_mas_vllm_cpu.adapter import WatchedWeightSender

    with ThreadPoolExecutor(1) as pool:
        receiver = pool.submit(engine.collective_rpc, "update_weights_from_ipc", kwargs={"use_shm": True})
        handle = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
        # A bucket of 1 MB is smaller than the model: weights arrive in several.
        sender = WatchedWeightSender(handle, 1, receiver)
        asyncio.run(sender.async_send_weights(iter(model.state_dict().items())))
        receiver.result()
    engine.reset_prefix_cache()


def main(path: str) -> None:
    from transformers import AutoModelForCausalLM
    from vllm import LLM

    engine = LLM(
        path,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        logprobs_mode="processed_logprobs",
        worker_extension_cls="verl_mas_vllm_cpu.worker.CpuWorkerExtension",
    )
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    distances = [distance(engine, model)]
    for seed in (1, 2):
        perturb(model, seed)
        stale = distance(engine, model)
        sync(engine, model)
        distances.append(distance(engine, model))
    sys.stdout.write("\n" + json.dumps({"distances": distances, "stale": stale}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
