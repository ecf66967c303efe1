"""verl's LLM client of a policy that is an adapter: each of its requests names the adapter."""

from __future__ import annotations

from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_mas.verl_.types import Actor


class AdapterClient(LLMServerClient):
    """Combines with the other clients: `class Both(AdapterClient, PhasedClient)`.

    The client has the name, and not its caller, because verl's agent loops call clients too.
    """

    def __init__(self, config: DictConfig, load_balancer_handle: Actor, *, adapter: str, **kwargs: object):
        super().__init__(config, load_balancer_handle, **kwargs)
        self.adapter = adapter

    async def generate(self, request_id: str, **kwargs: object) -> TokenOutput:
        output: TokenOutput = await super().generate(request_id, adapter=self.adapter, **kwargs)
        return output
