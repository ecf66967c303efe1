"""What verl-mas adds to verl's vLLM server, on a fake of it: death, and the order of sleep and wake_up."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest
from sleep_recorder.recorder import SleepRecorder

from verl_mas.engines.kinds.vllm import TeamVllm
from verl_mas.errors import EngineLost


class EngineDeadError(Exception):
    """vLLM's."""


class Engine(SleepRecorder):
    """An engine with requests, which can die."""

    def __init__(self):
        self.requests, self.errored = 0, False
        super().__init__(lambda: self.requests)


class StockServer:
    """What verl's server does."""

    def __init__(self):
        self.engine, self.node_rank, self.config = Engine(), 0, SimpleNamespace(custom=None)

    async def generate(self, *args, **kwargs):
        if self.engine.errored:
            raise EngineDeadError
        self.engine.check_serves()
        return "reply"

    async def sleep(self):
        await self.engine.sleep(level=2)

    async def wait_for_requests_to_drain(self): ...

    def _get_wake_up_tags(self):
        return ["kv_cache", "weights"]


class Server(TeamVllm, StockServer): ...


@pytest.fixture
def server(monkeypatch) -> Server:
    exceptions = ModuleType("vllm.v1.engine.exceptions")
    exceptions.EngineDeadError = EngineDeadError
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", exceptions)
    context = SimpleNamespace(get_actor_name=lambda: "vllm_server_4_0")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    return Server()


def test_a_dead_engine_ends_the_run_by_name_at_its_first_request_and_before_its_rows_train(server):
    server.engine.errored = True
    for call in (server.generate(), server.wait_for_requests_to_drain()):
        with pytest.raises(EngineLost, match="vllm_server_4_0 is dead"):
            asyncio.run(call)


def test_an_engine_in_phases_keeps_its_weights(server):
    async def phases():
        await server.pause()
        await server.unpause()
        return await server.generate()

    assert asyncio.run(phases()) == "reply"
    assert server.engine.events == ["sleep 1", "wake_up kv_cache weights"]


def test_verls_own_sleep_would_lose_them(server):
    async def phases():
        await server.sleep()
        await server.unpause()
        return await server.generate()

    with pytest.raises(AssertionError, match="lost its weights"):
        asyncio.run(phases())


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (["sleep", "sleep"], "sleep of an engine without"),
        (["wake"], "asleep are"),
        (["sleep", "load"], "weights are written"),
        (["request", "sleep"], "1 requests run"),
        (["sleep", "serve"], "a request to an engine without"),
    ],
)
def test_the_recorder_finds_calls_out_of_order(server, calls, says):
    engine = server.engine

    async def play():
        for call in calls:
            if call == "request":
                engine.requests += 1
            elif call in ("load", "serve"):
                engine.check_loads() if call == "load" else engine.check_serves()
            else:
                await (engine.sleep(2) if call == "sleep" else engine.wake_up())

    with pytest.raises(AssertionError, match=says):
        asyncio.run(play())


def test_an_abort_does_not_wait_for_requests_in_the_queue_of_the_engine():
    class Waiting:
        """verl's server: its abort waits until every request has a token, or has ended."""

        def __init__(self):
            self.states = {"queued": None}
            self.engine = SimpleNamespace(output_processor=SimpleNamespace(request_states=self.states), abort=self.end)
            self.node_rank, self.rejecting = 0, None

        async def end(self, known, internal):
            assert internal
            for name in known:
                del self.states[name]

        async def abort_all_requests(self, reset_prefix_cache, reject_request):
            self.rejecting = reject_request
            # One that was on its way.
            self.states["late"] = None
            while self.states:
                await asyncio.sleep(0.001)
            return {"aborted_count": 2}

    class Aborted(TeamVllm, Waiting): ...

    made = Aborted()
    found = asyncio.run(asyncio.wait_for(made.abort_all_requests(reject_request=True), 10))
    assert (found, made.rejecting) == ({"aborted_count": 2}, True)
