"""A program of test_vllm_cpu: two adapters and the bare base on verl's vLLM server; prints how right the replies are.

The prefix cache is not reset after new weights, as vLLM itself does not reset it while a request runs. There is no Ray:
the server lives in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import ray
import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl_mas_vllm_cpu.adapter import CpuServerAdapter
from verl_mas_vllm_cpu.server import CpuVllmServer

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.engines.adapters import stream_name
from verl_mas.errors import RequestError

TABLE = {
    # On one of the three that vLLM computes in one product, and on one of two.
    "solver": Adapter("solver", rank=8, alpha=16, seed=1, target_modules=["q_proj", "up_proj", "down_proj"]),
    "verifier": Adapter("verifier", rank=4, alpha=4, seed=2),
}
# vLLM's CPU build caches prefixes of 128 tokens.
PROMPT = [5 + index % 90 for index in range(160)]


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


async def start(path: str, lora_rank: int = 0, **rollout: Any) -> tuple[Server, CpuServerAdapter]:
    """Start a server of the model, and the sender of its training worker."""
    fixed: dict[str, Any] = {"name": "vllm", "tensor_model_parallel_size": 1, "dtype": "float32", "load_format": "auto"}
    config = RolloutConfig(**fixed, **rollout)
    model = HFModelConfig(path=path, lora_rank=lora_rank)
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: f"test{os.getpid()}")  # type: ignore[assignment, return-value]
    server = Server(config, model, RolloutMode.HYBRID, [], 0, 0, 1, 1, "")
    await server.launch_server()
    os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
    adapter = CpuServerAdapter(config, model, None)
    adapter.server_handle = Handle(server)
    return server, adapter


def adapters_on(path: str) -> PeftModel:
    configs = {
        one.name: LoraConfig(
            r=one.rank, lora_alpha=int(one.alpha), target_modules=one.target_modules, task_type="CAUSAL_LM"
        )
        for one in TABLE.values()
    }
    (first, config), *others = configs.items()
    model = PeftModel(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), config, adapter_name=first)
    for name, other in others:
        model.add_adapter(name, other)
    return model


@torch.no_grad()
def train(model: PeftModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


async def send(sender: CpuServerAdapter, model: PeftModel, step: int) -> None:
    stream = [
        (stream_name(policy, key), tensor)
        for policy, one in TABLE.items()
        for key, tensor in get_peft_model_state_dict(model, adapter_name=one.name, save_embedding_layers=False).items()
    ]
    configs = {
        policy: {"r": one.rank, "lora_alpha": one.alpha, "target_modules": one.target_modules}
        for policy, one in TABLE.items()
    }
    update = sender.update_weights(iter(stream), global_steps=step, peft_config=configs, base_sync_done=True)
    # It blocks its thread while the server's worker takes the weights.
    await asyncio.to_thread(asyncio.run, update)


async def ask(server: Server, policy: str | None) -> TokenOutput:
    names = {} if policy is None else {"adapter": policy}
    params = {"max_tokens": 24, "logprobs": True, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    request = uuid.uuid4().hex
    output: TokenOutput = await server.generate(prompt_ids=PROMPT, sampling_params=params, request_id=request, **names)
    return output


async def refused(server: Server, policy: str) -> str:
    try:
        await ask(server, policy)
    except RequestError as error:
        return str(error)
    return ""


@torch.no_grad()
def distance(output: TokenOutput, model: PeftModel, policy: str | None) -> float:
    """Between the log-probs of a reply and those of the policy in transformers and PEFT."""
    ids = torch.tensor([PROMPT + list(output.token_ids)])
    if policy is None:
        with model.disable_adapter():
            logits = model(ids).logits
    else:
        model.set_adapter(TABLE[policy].name)
        logits = model(ids).logits
    reply = ids[0, len(PROMPT) :]
    ours = logits[0, len(PROMPT) - 1 : -1].log_softmax(-1).gather(-1, reply[:, None])[:, 0]
    return float((torch.tensor(output.log_probs) - ours).abs().max())


async def main(path: str) -> dict[str, object]:
    lengths = {"prompt_length": 192, "response_length": 64, "max_model_len": 256, "max_num_batched_tokens": 1024}
    custom = {KEY: {name: asdict(adapter) for name, adapter in TABLE.items()}}
    server, sender = await start(path, lora_rank=8, max_num_seqs=16, custom=custom, **lengths)
    model = adapters_on(path)
    early, bare = await refused(server, "solver"), distance(await ask(server, None), model, None)
    rows = ["solver", None, "verifier", "solver", "verifier", None]
    others = ["verifier", "solver", None, None, "solver", "verifier"]
    pushes = []
    for step in (1, 2):
        train(model, seed=step)
        await send(sender, model, step)
        mixed = await asyncio.gather(*[ask(server, policy) for policy in rows])
        again = [await ask(server, policy) for policy in rows]
        pushes.append(
            {
                "mixed": [distance(reply, model, policy) for reply, policy in zip(mixed, rows, strict=True)],
                "others": [distance(reply, model, policy) for reply, policy in zip(mixed, others, strict=True)],
                "again": [distance(reply, model, policy) for reply, policy in zip(again, rows, strict=True)],
                "cached": [reply.extra_fields["num_cached_tokens"] for reply in again],
                "unknown": await refused(server, "judge"),
            }
        )
    server.engine.shutdown()
    return {"early": early, "bare": bare, "pushes": pushes}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(main(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    # The server's tasks end with this process; those of the engine would outlive it.
    os._exit(0)
