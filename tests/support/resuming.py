"""A resuming client of an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.adapter_client import AdapterClient
from verl_mas.rollout.gates import Gate
from verl_mas.rollout.resuming_client import ResumingClient
from verl_mas.trainer.policies.servers import OnlyServerClient
from verl_mas.verl_.types import Tokenizer
from verl_mas.warmup.tiny_model import byte_tokenizer

ROLLOUT = {
    "name": "transformers",
    "prompt_length": 32,
    "response_length": 48,
    "max_model_len": 128,
    "full_determinism": True,
}


class Client(ResumingClient, OnlyServerClient):
    pass


class AdapterOf(AdapterClient, ResumingClient, OnlyServerClient):
    pass


def client_of(
    generate: Callable[..., Awaitable[TokenOutput]], kind: type[ResumingClient] = Client, **rollout: Any
) -> ResumingClient:
    """`generate` is the server's."""

    def remote(**request: Any) -> asyncio.Future[TokenOutput]:
        return asyncio.ensure_future(generate(**request))

    handle = SimpleNamespace(generate=SimpleNamespace(remote=remote))
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**ROLLOUT, **rollout}}})
    own = {"adapter": "verifier"} if issubclass(kind, AdapterClient) else {}
    client = kind(config=config, load_balancer_handle=cast(Any, None), server=handle, **own)
    client.gate, client.decode = Gate(), cast(Tokenizer, byte_tokenizer()).decode
    return client
