"""Weights through Ray's object store: the calls of verl's manager of checkpoint engines, in one process."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry

from verl_mas.engines.ray_weights import AHEAD, BACKEND, RayWeights
from verl_mas.errors import EngineLost

WEIGHTS = {f"layer.{i}": torch.full((8,), float(i), dtype=torch.bfloat16) for i in range(20)}
ONE_TENSOR = 16  # bytes of a bucket, so that each tensor is a bucket


class Handle:
    """Stand-in for Ray's handle of a process with a receiver."""

    def __init__(self, engine):
        self.engine, self.execute_checkpoint_engine = engine, self

    async def remote(self, method, *given):
        return getattr(self.engine, method)(*given)


async def everything(engine):
    return {name: tensor async for name, tensor in engine.receive_weights()}


@pytest.fixture
def transfer(monkeypatch):
    """Send WEIGHTS from `senders` training processes to `receivers` engines; return the weights that each engine
    took."""
    monkeypatch.setattr(ray, "put", lambda value: value)

    async def transfer(senders=1, receivers=1, take=everything):
        engines = [CheckpointEngineRegistry.new(BACKEND, bucket_size=ONE_TENSOR) for _ in range(senders + receivers)]
        handles = []
        for engine in engines:
            context = SimpleNamespace(current_actor=Handle(engine))
            monkeypatch.setattr(ray, "get_runtime_context", lambda context=context: context)
            handles.append(engine.prepare())
        here, there = RayWeights.build_topology(senders, receivers, handles)
        for engine, given in zip(engines, [*here["receivers"], *there["receivers"]], strict=True):
            engine.init_process_group(receivers=given)
        walked = [iter(WEIGHTS.items()) for _ in range(senders)]
        taken = [asyncio.create_task(take(engine)) for engine in engines[senders:]]
        sent = [engine.send_weights(walk, global_steps=3) for engine, walk in zip(engines, walked, strict=False)]
        await asyncio.wait_for(asyncio.gather(*sent), 10)
        assert all(next(walk, None) is None for walk in walked)
        return await asyncio.gather(*taken)

    return transfer


async def test_every_engine_gets_every_weight_of_the_first_training_process_and_the_others_only_gather(transfer):
    for taken in await transfer(senders=2, receivers=2):
        assert list(taken) == list(WEIGHTS)
        assert all(torch.equal(taken[name], WEIGHTS[name]) and taken[name].dtype == torch.bfloat16 for name in WEIGHTS)


async def test_the_sender_waits_for_a_slow_engine_instead_of_filling_the_object_store(transfer):
    most = []

    async def slowly(engine):
        async for _ in engine.receive_weights():
            most.append(engine.waiting())
            await asyncio.sleep(0.01)

    await transfer(take=slowly)
    assert len(most) == len(WEIGHTS) and max(most) <= AHEAD + 1


async def test_an_engine_that_fails_ends_the_sender(transfer):
    async def fails(engine):
        weights = engine.receive_weights()
        await anext(weights)
        await weights.aclose()  # like after an exception of its reader

    with pytest.raises(EngineLost, match="does not wait for any"):
        await transfer(take=fails)
