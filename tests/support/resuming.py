"""A client that resumes aborted replies, for an engine in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.team_client import Gate, TeamClient
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.verl_.types import Actor, Tokenizer

ROLLOUT = {
    "name": "transformers",
    "prompt_length": 32,
    "response_length": 48,
    "max_model_len": 128,
    "full_determinism": True,
}


def client_of(
    generate: Callable[..., Awaitable[TokenOutput]], adapter: str | None = None, **rollout: Any
) -> TeamClient:
    """Make a client of a server with this `generate`."""

    def remote(**request: Any) -> asyncio.Future[TokenOutput]:
        return asyncio.ensure_future(generate(**request))

    handle = SimpleNamespace(generate=SimpleNamespace(remote=remote))
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**ROLLOUT, **rollout}}})
    client = TeamClient(config, cast(Actor, handle), only_server=cast(Actor, handle), adapter=adapter, resumes=True)
    client.gate, client.decode = Gate(), cast(Tokenizer, byte_tokenizer()).decode
    return client
