from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import AsyncMock, call

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.trainer.policies.servers import Servers
from verl_mas.trainer.trainer import TeamTrainer


def test_an_abort_reaches_all_replicas_and_rejects_requests_until_they_are_resumed():
    replicas, servers = [AsyncMock(), AsyncMock()], Servers()
    servers.llm_server_manager = SimpleNamespace(get_replicas=lambda: replicas)
    servers.abort()
    servers.resume()
    calls = [call.abort_all_requests(reject_request=True), call.resume_generation()]
    assert [replica.mock_calls for replica in replicas] == [calls, calls]


@pytest.mark.parametrize(("given", "seconds"), [({}, 0.25), ({"poll_interval": 0.1}, 0.1)])
def test_the_rollout_is_polled_as_often_as_configured(monkeypatch, given, seconds):
    monkeypatch.setattr(PPOTrainer, "_build_replay_buffer", lambda self: SimpleNamespace(poll_interval=2.0))
    trainer = object.__new__(TeamTrainer)
    trainer.config = OmegaConf.create({"trainer": {"v1": {"sampler": {"sampler_kwargs": given}}}})
    assert trainer._build_replay_buffer().poll_interval == seconds
