"""The engines of a local policy, trained or frozen, as the team uses them."""

from __future__ import annotations

import ray
from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from verl_mas.trainer.phases import verbs
from verl_mas.verl_types import Actor


class Servers:
    config: DictConfig
    llm_server_manager: LLMServerManager

    @property
    def engine(self) -> str:
        name: str = self.config.actor_rollout_ref.rollout.name
        return name

    @property
    def servers(self) -> list[Actor]:
        return [server for replica in self.llm_server_manager.get_replicas() for server in replica.servers]

    def client(self) -> LLMServerClient:
        handles = self.llm_server_manager.server_handles
        if len(handles) == 1:
            return self.llm_server_manager.get_client(OnlyServerClient, server=handles[0])
        return self.llm_server_manager.get_client()

    def pause(self) -> None:
        """Free the GPU's memory and keep the weights."""
        method, _ = verbs(self.engine)
        ray.get([getattr(server, method).remote() for server in self.servers])


class OnlyServerClient(LLMServerClient):
    """With one server there is nothing to balance, so a request needs no calls to the balancer's process."""

    def __init__(self, config: DictConfig, load_balancer_handle: Actor, *, server: Actor, **kwargs: object):
        super().__init__(config, load_balancer_handle, **kwargs)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, Actor]:
        return "only", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """No balancer counts the requests."""
