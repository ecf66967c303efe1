"""The engines of a local policy, trained or frozen, as the team uses them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING

import ray
from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from verl_mas.rollout.adapter_client import AdapterClient
from verl_mas.trainer.phases import PhasedClient, verbs
from verl_mas.verl_types import Actor

if TYPE_CHECKING:
    from verl_mas.trainer.checkpoint import Saved
    from verl_mas.trainer.policy_trainer import PolicyTrainer


class Servers:
    name: str
    config: DictConfig
    llm_server_manager: LLMServerManager
    metrics: Mapping[str, float] = MappingProxyType({})
    """Of the last `wake`."""

    @property
    def trained(self) -> Mapping[str, PolicyTrainer]:
        """The policies that are updated and use these engines, by name."""
        return {}

    @property
    def saved(self) -> Mapping[str, Saved]:
        """What a checkpoint has of them, by the name of its folder."""
        return {}

    def on_device(self) -> AbstractContextManager[None]:
        """Around work on several of its policies. verl moves the weights of one policy itself, for each call."""
        return nullcontext()

    @property
    def engine(self) -> str:
        name: str = self.config.actor_rollout_ref.rollout.name
        return name

    @property
    def servers(self) -> list[Actor]:
        return [server for replica in self.llm_server_manager.get_replicas() for server in replica.servers]

    def client(self, slices: Actor | None = None, adapter: str | None = None) -> LLMServerClient:
        """`slices`: the time slices of its pool. `adapter`: the policy whose adapter serves the requests."""
        handles = self.llm_server_manager.server_handles
        kind: type[LLMServerClient] = LLMServerClient
        given: dict[str, object] = {}
        if slices is not None:
            kind, given = PhasedClient, {"policy": self.name, "slices": slices}
        elif len(handles) == 1:
            kind, given = OnlyServerClient, {"server": handles[0]}
        if adapter is not None:
            kind, given = _WITH_ADAPTER[kind], {**given, "adapter": adapter}
        return self.llm_server_manager.get_client(kind, **given)

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


class OnlyServerAdapterClient(AdapterClient, OnlyServerClient):
    """Of an adapter on the only server."""


class PhasedAdapterClient(AdapterClient, PhasedClient):
    """Of an adapter whose base has time slices."""


_WITH_ADAPTER: dict[type[LLMServerClient], type[AdapterClient]] = {
    LLMServerClient: AdapterClient,
    OnlyServerClient: OnlyServerAdapterClient,
    PhasedClient: PhasedAdapterClient,
}
