from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock, call

import pytest
import ray
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.config.run import Run
from verl_mas.engines.serving import settled
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.trainer.members import make as make_policy
from verl_mas.trainer.policies import servers as module
from verl_mas.trainer.policies.servers import Engines, Servers
from verl_mas.trainer.pools.pools import Pools
from verl_mas.trainer.starting import Turn
from verl_mas.trainer.timeline import LAUNCH, Timeline, read_timeline
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
    """A replica that waits for its processes when it starts; the last of eight cannot start."""

    def __init__(self, replica_rank, **given):
        self.server_handle = self.server_address = replica_rank

    async def init_colocated(self, share):
        if share == "broken":
            raise RuntimeError("no such model")
        await asyncio.sleep(0.3)


@pytest.fixture
def started(monkeypatch):
    """Start the engines of a frozen policy, each of which has one of these GPUs."""

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


@pytest.mark.nightly
@pytest.mark.e2e
def test_four_embedded_replicas_start_together_and_answer(make, tmp_path, monkeypatch, warm_python):
    from verl.plugin.platform import get_platform, set_platform

    from verl_mas.platform.cpu import PlatformCPU

    times = {}

    async def start(self, replica, share, verls=Engines.start_replica):
        begin = time.monotonic()
        await verls(self, replica, share)
        times[replica.replica_rank] = begin, time.monotonic()

    monkeypatch.setattr(Engines, "start_replica", start)
    monkeypatch.setattr("sys.executable", warm_python)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    before = get_platform()
    set_platform(PlatformCPU())
    settings = {"name": "transformers", "dtype": "float32", "prompt_length": 32, "response_length": 16}
    settings |= {"tensor_model_parallel_size": 1, "load_format": "auto"}
    config = make(
        mas__policies={"main": {}, "guide": {"trainable": False, "pool": "apart", "overrides": {"rollout": settings}}},
        mas__pools={"shared": {}, "apart": {"n_gpus_per_node": 4}},
        actor_rollout_ref__model__path=str(tiny_model(tmp_path / "model", parameters=100_000)),
        trainer__n_gpus_per_node=1,
        trainer__device="cpu",
    )
    ray.init(num_cpus=16, num_gpus=5, include_dashboard=False, log_to_driver=False)
    try:
        run = settled(Run.of(config))
        pools = Pools(run)
        pools.create()
        guide = make_policy("guide", run, pools, 1)
        guide.start(Turn("guide", Timeline(tmp_path, {"guide": "apart"}), {}))
        guide.wake(0)
        asked = [server.generate.remote([1, 2, 3], {"max_tokens": 4}, "1") for server in guide.servers]
        assert [len(reply.token_ids) for reply in ray.get(asked)] == [4] * 4
    finally:
        ray.shutdown()
        set_platform(before)
    assert [event.event for event in read_timeline(tmp_path)] == [LAUNCH]
    begins, ends = zip(*times.values(), strict=True)
    assert len(begins) == 4 and max(begins) < min(ends)
