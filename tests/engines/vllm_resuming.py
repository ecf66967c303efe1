"""A program of test_vllm_cpu: verl's vLLM server is aborted, gets new weights, and continues its replies. For each part
of a reply, the program prints the distance between its log-probs and the log-probs under the weights that sampled it.
The server runs in this process, without Ray."""

import asyncio
import json
import os
import sys
from collections.abc import Generator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import ray
import torch
from resuming import client_of
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl_mas_vllm_cpu.adapter import CpuServerAdapter
from verl_mas_vllm_cpu.server import CpuVllmServer

from verl_mas.verl_.row import VERSIONS

LENGTHS: dict[str, Any] = {"prompt_length": 64, "response_length": 180, "max_model_len": 256}
PROMPTS = [[5, 6, 7 + number] for number in range(6)]
PARAMS = {"logprobs": True, "ignore_eos": True, "temperature": 1.0}


class Server(CpuVllmServer):
    async def clear_kv_cache(self) -> None: ...


class Handle:
    """Handle of the server like that of a Ray actor: every method runs in the event loop of the server."""

    def __init__(self, server: Server):
        self._server, self._loop = server, asyncio.get_running_loop()

    def __getattr__(self, name: str) -> SimpleNamespace:
        def remote(*args: object, **kwargs: object) -> Call:
            return Call(asyncio.run_coroutine_threadsafe(getattr(self._server, name)(*args, **kwargs), self._loop))

        return SimpleNamespace(remote=remote)


class Call:
    def __init__(self, done: Future[object]):
        self._done = done

    def __await__(self) -> Generator[object, None, object]:
        return asyncio.wrap_future(self._done).__await__()

    def future(self) -> Future[object]:
        return self._done


async def start(path: str, **rollout: Any) -> tuple[Server, CpuServerAdapter]:
    """Start a server of the model without Ray, and the sender of its training worker."""
    fixed: dict[str, Any] = {"name": "vllm", "tensor_model_parallel_size": 1, "dtype": "float32", "load_format": "auto"}
    config = RolloutConfig(**fixed, **rollout)
    model = HFModelConfig(path=path)
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: f"test{os.getpid()}")  # type: ignore[assignment, return-value]
    server = Server(config, model, RolloutMode.HYBRID, [], 0, 0, 1, 1, "")
    await server.launch_server()
    os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
    adapter = CpuServerAdapter(config, model, None)
    adapter.server_handle = Handle(server)
    return server, adapter


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
    # The update blocks its thread while the server's worker takes the weights.
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
