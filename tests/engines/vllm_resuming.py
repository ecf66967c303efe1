"""A program of test_vllm_cpu: verl's vLLM server is aborted, gets new weights, and continues its replies; prints how
far each part's log-probs are from those of the weights that sampled it. There is no Ray: see vllm_adapters.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import torch
from resuming import client_of
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl.workers.rollout.replica import TokenOutput
from vllm_adapters import start

from verl_mas.verl_.row import VERSIONS

LENGTHS: dict[str, Any] = {"prompt_length": 64, "response_length": 180, "max_model_len": 256}
PROMPTS = [[5, 6, 7 + number] for number in range(6)]
PARAMS = {"logprobs": True, "ignore_eos": True, "temperature": 1.0}


@torch.no_grad()
def distance(model: PreTrainedModel, prompt: list[int], reply: TokenOutput, first: int, last: int) -> float:
    ids = torch.tensor([[*prompt, *reply.token_ids]])
    log_probs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    ours = log_probs.gather(-1, ids[0, len(prompt) :, None])[:, 0]
    assert reply.log_probs is not None
    return float((torch.tensor(reply.log_probs) - ours)[first:last].abs().max())


async def main(path: str) -> dict[str, object]:
    server, sender = await start(path, max_num_seqs=4, **LENGTHS)
    await server.set_global_steps(1)
    client = client_of(server.generate, name="vllm", **LENGTHS)
    calls = [
        client.generate(f"r{number}", prompt_ids=prompt, sampling_params={**PARAMS, "seed": number})
        for number, prompt in enumerate(PROMPTS)
    ]
    asked = [asyncio.ensure_future(call) for call in calls]
    states = server.engine.output_processor.request_states
    while not any(state.detokenizer.num_output_tokens() > 20 for state in states.values()):
        await asyncio.sleep(0.001)
    client.gate.close()
    await server.abort_all_requests(reject_request=True)
    late = await server.generate([5, 6], dict(PARAMS), "late")
    old = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.2)
    update = sender.update_weights(iter(new.state_dict().items()), global_steps=2)
    # It blocks its thread while the server's worker takes the weights.
    await asyncio.to_thread(asyncio.run, update)
    await server.set_global_steps(2)
    await server.resume_generation()
    client.gate.open()
    replies = await asyncio.gather(*asked)
    distances = []
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        count = sum(tokens for tokens, version in reply.extra_fields[VERSIONS] if version == 1)
        parts = [(old, 0, count), (new, count, len(reply.token_ids))]
        distances.append([distance(model, prompt, reply, *ends) for model, *ends in parts if ends[1] > ends[0]])
    server.engine.shutdown()
    return {
        "distances": distances,
        "versions": [reply.extra_fields[VERSIONS] for reply in replies],
        "lengths": [len(reply.token_ids) for reply in replies],
        "late": [late.stop_reason, late.token_ids],
        "stale": distance(old, PROMPTS[-1], replies[-1], 0, 180),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(main(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    # The server's tasks end with this process; those of the engine would outlive it.
    os._exit(0)
