"""Additions of verl-mas to verl's vLLM server, on a fake of it: death, the order of sleep and wake_up, several
adapters.

test_vllm_cpu tests them on a real server.
"""

import asyncio
import sys
from argparse import Namespace
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest
from sleep_recorder.recorder import SleepRecorder

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.engines.kinds.vllm import EXTENSION, TeamVllm
from verl_mas.errors import EngineLost, RequestError


class EngineDeadError(Exception):
    """Stand-in for vLLM's exception of the same name."""


class Engine(SleepRecorder):
    """An engine with requests, which can die."""

    def __init__(self):
        self.running, self.errored, self.requests, self.adapters = 0, False, [], None
        super().__init__(lambda: self.running)

    async def collective_rpc(self, method, args):
        self.adapters = (method, *args)

    async def list_loras(self):
        raise AssertionError("a round trip to the workers for every request")

    async def generate(self, prompt, lora_request):
        self.check_serves()
        self.requests.append((prompt, lora_request and (lora_request.lora_name, lora_request.lora_int_id)))
        yield prompt


class StockServer:
    """Stand-in for verl's server. It knows one adapter, if the workers have loaded it."""

    def __init__(self, policies):
        table = {name: asdict(Adapter(name, rank=8, alpha=8, seed=0)) for name in policies}
        self.node_rank, self.config = 0, SimpleNamespace(custom={KEY: table} if table else None)

    def _get_worker_extension_cls(self):
        return "verl's"

    def _get_wake_up_tags(self):
        return ["kv_cache", "weights"]

    async def run_server(self, args):
        self.engine = Engine()

    async def run_headless(self, args): ...

    async def set_global_steps(self, step): ...

    async def generate(self, prompt):
        if self.engine.errored:
            raise EngineDeadError
        adapted = isinstance(self.config.custom, dict) and 123 in await self.engine.list_loras()
        # A weight sync may take place here.
        await asyncio.sleep(0)
        replies = self.engine.generate(prompt=prompt, lora_request="verl's" if adapted else None)
        return [output async for output in replies]

    async def sleep(self):
        await self.engine.sleep(level=2)

    async def wait_for_requests_to_drain(self): ...


class Server(TeamVllm, StockServer): ...


@pytest.fixture
def start(monkeypatch):
    fakes = {
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
        "vllm.lora.request": {"LoRARequest": SimpleNamespace},
    }
    for name, agents in fakes.items():
        module = ModuleType(name)
        module.__dict__.update(agents)
        monkeypatch.setitem(sys.modules, name, module)
    context = SimpleNamespace(get_actor_name=lambda: "vllm_server_4_0")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)

    async def start(*policies, pushes=1):
        server = Server(policies)
        await server.run_server(Namespace(max_loras=1))
        for step in range(pushes):
            await server.set_global_steps(step)
        return server

    return start


async def test_a_dead_engine_ends_the_run_by_name_at_its_first_request_and_before_its_rows_train(start):
    server = await start()
    server.engine.errored = True
    for call in (server.generate("q"), server.wait_for_requests_to_drain()):
        with pytest.raises(EngineLost, match="vllm_server_4_0 is dead"):
            await call


async def test_an_engine_in_phases_keeps_its_weights_which_verls_own_sleep_would_lose(start):
    server = await start()
    await server.pause()
    await server.unpause()
    assert await server.generate("reply") == ["reply"]
    assert server.engine.events == ["sleep 1", "wake_up kv_cache weights"]
    await server.sleep()
    await server.unpause()
    with pytest.raises(AssertionError, match="lost its weights"):
        await server.generate("reply")


async def test_an_abort_does_not_wait_for_requests_in_the_queue_of_the_engine():
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
            # A request that was on its way arrives.
            self.states["late"] = None
            while self.states:
                await asyncio.sleep(0.001)
            return {"aborted_count": 2}

    class Aborted(TeamVllm, Waiting): ...

    server = Aborted()
    counted = await asyncio.wait_for(server.abort_all_requests(reject_request=True), 10)
    assert (counted, server.rejecting) == ({"aborted_count": 2}, True)


@pytest.mark.parametrize("part", ["run_server", "run_headless"])
async def test_every_adapter_of_a_base_has_a_place_in_every_batch(part):
    server, args = Server(["a", "b", "c"]), Namespace(max_loras=1)
    await getattr(server, part)(args)
    assert args.max_loras == args.max_cpu_loras == 3


async def test_each_request_gets_its_adapter_and_no_other_one_does(start):
    server = await start("a", "b")
    await asyncio.gather(*[server.generate(name, adapter=name) for name in "abba"], server.generate("base"))
    requests = server.engine.requests
    ids = dict(requests)
    assert server.engine.adapters == ("set_adapters", {name: ids[name][1] for name in "ab"})
    assert sorted(requests[:4]) == sorted((name, (f"mas_{name}@1", ids[name][1])) for name in "abba")
    assert requests[4] == ("base", None) and ids["a"] != ids["b"]


async def test_new_weights_have_a_new_name_and_the_old_number(start):
    """The prefix cache knows adapters by name, and the workers by number."""
    server = await start("a")
    await server.generate("before", adapter="a")
    waiting = asyncio.ensure_future(server.generate("during", adapter="a"))
    await asyncio.sleep(0)
    # Set the same step again, as after a resume from a checkpoint.
    await server.set_global_steps(0)
    await waiting
    seen = dict(server.engine.requests)
    assert seen["before"][0] == "mas_a@1" and seen["during"][0] == "mas_a@2"
    assert seen["before"][1] == seen["during"][1]


@pytest.mark.parametrize(("pushes", "adapter"), [(1, "c"), (0, "a")])
async def test_a_request_that_would_end_the_engine_does_not_reach_it(start, pushes, adapter):
    server = await start("a", pushes=pushes)
    with pytest.raises(RequestError):
        await server.generate("bad", adapter=adapter)
    assert await server.generate("base") == ["base"]


async def test_a_policy_with_weights_of_its_own_has_verls_server():
    server, args = Server([]), Namespace(max_loras=1)
    await server.run_server(args)
    assert args == Namespace(max_loras=1) and type(server.engine) is Engine
    extensions = [Server(table)._get_worker_extension_cls() for table in ([], ["a"])]  # noqa: SLF001
    assert extensions == ["verl's", EXTENSION]
