"""What the team knows of a local policy's engines, trained or not."""

from __future__ import annotations

from typing import Any

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from verl_mas.trainer.phases import verbs


class Servers:
    config: DictConfig
    llm_server_manager: LLMServerManager

    @property
    def engine(self) -> str:
        return self.config.actor_rollout_ref.rollout.name

    @property
    def servers(self) -> list[ActorHandle]:
        return [server for replica in self.llm_server_manager.get_replicas() for server in replica.servers]

    def client(self) -> LLMServerClient:
        handles = self.llm_server_manager.server_handles
        if len(handles) == 1:
            return self.llm_server_manager.get_client(OnlyServerClient, server=handles[0])
        return self.llm_server_manager.get_client()

    def pause(self) -> None:
        """Leave the GPU and keep the weights."""
        method, _ = verbs(self.engine)
        ray.get([getattr(server, method).remote() for server in self.servers])


class OnlyServerClient(LLMServerClient):
    """With one server there is nothing to balance: a request saves its two calls to the balancer's process."""

    def __init__(self, *args: Any, server: ActorHandle, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        return "only", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Nobody counts."""
