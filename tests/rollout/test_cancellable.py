"""Cancelling an act also ends its requests in the engine."""

from __future__ import annotations

import asyncio

import pytest

from verl_mas.workflow import Request

REQUEST = Request("a", "u_0", 0, [{"role": "user", "content": "q"}])


async def cancelled_act(client, n):
    act = asyncio.ensure_future(client.generate(REQUEST, n))
    await asyncio.sleep(0.05)
    act.cancel()
    await asyncio.gather(act, return_exceptions=True)
    await asyncio.sleep(0)


def test_cancelling_an_act_cancels_its_requests(policy, loop, monkeypatch):
    import ray

    class Reference:
        def __await__(self):
            return asyncio.sleep(60).__await__()

    client, server = policy(lambda prompt, number: "x")
    reference, cancelled = Reference(), []
    monkeypatch.setattr(server, "remote", lambda **kwargs: reference)
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    loop.run_until_complete(cancelled_act(client, 2))
    assert cancelled == [reference, reference]


@pytest.mark.e2e
def test_a_real_actor_receives_the_cancellation(ray_here, policy, loop, monkeypatch):
    import ray

    @ray.remote
    class Engine:
        def __init__(self):
            self.seen = []

        async def generate(self, **kwargs):
            try:
                self.seen.append("started")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise

        async def events(self):
            return self.seen

    engine = Engine.remote()
    ray.get(engine.events.remote())
    client, server = policy(lambda prompt, number: "x")
    monkeypatch.setattr(server, "remote", engine.generate.remote)

    async def until_cancelled():
        act = asyncio.ensure_future(client.generate(REQUEST))
        while not ray.get(engine.events.remote()):
            await asyncio.sleep(0.05)
        act.cancel()
        await asyncio.gather(act, return_exceptions=True)

    loop.run_until_complete(until_cancelled())
    for _ in range(100):
        if len(seen := ray.get(engine.events.remote())) > 1:
            break
        loop.run_until_complete(asyncio.sleep(0.05))
    assert seen == ["started", "cancelled"]
