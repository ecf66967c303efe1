"""A policy over verl's own client class, whose server is a script."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.team_client import TeamClient
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.verl_.types import Actor, Fields, Tokenizer

# Maps the prompt's text and the index of the call to a reply; None is a reply without tokens.
Answer = Callable[[str, int], "str | None"]


class Server:
    """A stand-in for the Ray handle of a server. It replies with the tokens of a text, each with log-prob -0.25."""

    def __init__(self, tokenizer: Tokenizer, answer: Answer, latency: float = 0.0):
        self.tokenizer, self.answer, self.latency = tokenizer, answer, latency
        self.calls: list[Fields] = []
        self.requests: list[str] = []  # the ids that the client asked for
        self.generate = self

    async def remote(self, **kwargs: Any) -> object:
        self.calls.append(kwargs)
        number = len(self.calls) - 1
        await asyncio.sleep(self.latency)
        prompt = self.tokenizer.decode(kwargs["prompt_ids"])
        text = self.answer(prompt, number)
        ids = [] if text is None else [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        ids = ids[: kwargs["sampling_params"].get("max_tokens", len(ids))]
        return TokenOutput(
            token_ids=ids, log_probs=[-0.25] * len(ids), stop_reason="completed", extra_fields={"global_steps": number}
        )


class Client(LLMServerClient):
    def __init__(self, config: DictConfig, server: Server):
        super().__init__(config)
        self.behind = server

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, Any]:
        self.behind.requests.append(request_id)
        return "server", self.behind

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


class OfTeam(TeamClient, Client):
    """The same client as a team's worker gets it."""


def scripted_policy(
    tokenizer: Tokenizer, answer: Answer, *, latency: float = 0.0, **rollout: Any
) -> tuple[VerlPolicy, Server]:
    config, server = _config(**rollout), Server(tokenizer, answer, latency)
    return VerlPolicy(
        config, OfTeam(config, cast(Actor, server)), Model(tokenizer, None, "qwen2", {}), RLHFDataset
    ), server


def _config(**rollout: Any) -> DictConfig:
    multi_turn = {
        "format": "hermes",
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 1,
        "max_tool_response_length": 64,
        "tool_response_truncate_side": "middle",
    }
    lengths = {"prompt_length": 256, "response_length": 64, "max_model_len": None}
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    section: Fields = {"_target_": "verl.workers.config.RolloutConfig", "name": "fake", **lengths, **sampling}
    section |= {"calculate_log_probs": True, "full_determinism": False}
    validation = {"_target_": "verl.workers.config.SamplingConfig", "temperature": 0, "top_p": 0.9, "top_k": 5}
    section |= {"val_kwargs": validation, "multi_turn": multi_turn, **rollout}
    config = {"actor_rollout_ref": {"rollout": section}, "data": {"apply_chat_template_kwargs": {}}}
    return OmegaConf.create(config)
