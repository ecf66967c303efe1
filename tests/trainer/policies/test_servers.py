import asyncio
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock, call

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.trainer.policies import servers as module
from verl_mas.trainer.policies.servers import Engines, Servers
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


class SlowReplica:
    """A replica that starts slowly, or cannot start if its GPU is `broken`."""

    def __init__(self, replica_rank, **given):
        self.server_handle = self.server_address = replica_rank

    async def init_colocated(self, share):
        if share == "broken":
            raise RuntimeError("no such model")
        await asyncio.sleep(0.3)


@pytest.fixture
def started(monkeypatch):
    """Start the engines of a frozen policy, one per GPU."""

    class SlowEngines(Engines):
        rollout_replica_class = SlowReplica

    monkeypatch.setattr("verl.workers.rollout.router.get_router_handle", lambda **given: "balancer")

    def start(gpus):
        monkeypatch.setattr(module, "split_resource_pool", lambda pool, size: gpus)
        parallel = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "data", "pipeline_model")}
        rollout = {"name": "slow", "nnodes": 1, "n_gpus_per_node": len(gpus), "custom": {"policy": "a"}, **parallel}
        begin = time.monotonic()
        made = SlowEngines.create(config=OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}}))
        return made.server_handles, time.monotonic() - begin

    return start


def test_eight_replicas_of_a_frozen_policy_start_within_a_third_more_than_one(started):
    one, eight = started(["0"]), started(list("01234567"))
    assert (one[0], eight[0]) == ([0], list(range(8)))
    assert eight[1] < 1.3 * one[1]


def test_a_replica_that_cannot_start_is_raised_before_the_others_are_there(started):
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="no such model"):
        started(["0", "broken"])
    assert time.monotonic() - begin < 0.3
