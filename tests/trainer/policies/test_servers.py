from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.llm_server import LLMServerClient

from verl_mas.rollout.adapter_client import AdapterClient
from verl_mas.rollout.resuming_client import ResumingClient
from verl_mas.trainer.policies.servers import OnlyServerClient, Servers
from verl_mas.trainer.trainer import TeamTrainer


class Manager:
    """verl's LLMServerManager, as a client uses it."""

    def __init__(self, *handles: str):
        self.server_handles = list(handles)

    def get_client(self, client_cls=LLMServerClient, **kwargs):
        return client_cls(config=None, load_balancer_handle=None, **kwargs)


def client(*handles: str, **given: object) -> LLMServerClient:
    servers = Servers()
    servers.llm_server_manager = Manager(*handles)
    return servers.client(**given)


def test_one_server_is_called_without_the_balancer_and_several_through_it():
    only = client("server")
    assert isinstance(only, OnlyServerClient)
    name, server = asyncio.run(only._acquire_server("request", prompt_ids=[1]))  # noqa: SLF001
    assert server == "server"
    only._release_server(name, request_id="request")  # noqa: SLF001
    assert type(client("one", "two")) is LLMServerClient


@pytest.mark.parametrize("adapter", [None, "one"])
@pytest.mark.parametrize("handles", [["server"], ["one", "two"]])
def test_clients_of_engines_that_are_aborted_differ_in_nothing_else(handles, adapter):
    plain, resuming = (client(*handles, adapter=adapter, resumes=resumes) for resumes in (False, True))
    assert isinstance(resuming, ResumingClient) and not isinstance(plain, ResumingClient)
    assert isinstance(resuming, AdapterClient) == isinstance(plain, AdapterClient) == bool(adapter)
    assert isinstance(resuming, OnlyServerClient) == isinstance(plain, OnlyServerClient) == (len(handles) == 1)


def test_an_abort_reaches_all_replicas_and_rejects_requests_until_they_are_resumed():
    log = []

    class Replica:
        async def abort_all_requests(self, reject_request):
            log.append(("abort", reject_request))

        async def resume_generation(self):
            log.append("resume")

    servers = Servers()
    servers.llm_server_manager = SimpleNamespace(get_replicas=lambda: [Replica(), Replica()])
    servers.abort()
    servers.resume()
    assert log == [("abort", True), ("abort", True), "resume", "resume"]


@pytest.mark.parametrize(("given", "seconds"), [({}, 2.0), ({"poll_interval": 0.1}, 0.1)])
def test_the_rollout_is_polled_as_often_as_configured(monkeypatch, given, seconds):
    monkeypatch.setattr(PPOTrainer, "_build_replay_buffer", lambda self: SimpleNamespace(poll_interval=2.0))
    trainer = object.__new__(TeamTrainer)
    trainer.config = OmegaConf.create({"trainer": {"v1": {"sampler": {"sampler_kwargs": given}}}})
    assert trainer._build_replay_buffer().poll_interval == seconds
