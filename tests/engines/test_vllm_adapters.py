"""What verl-mas adds to verl's vLLM server for several adapters, on a fake of it; on a real one: test_vllm_cpu."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.engines.vllm_adapters import EXTENSION, AdapterServer
from verl_mas.errors import RequestError


class Engine:
    def __init__(self):
        self.requests, self.told = [], None

    async def collective_rpc(self, method, args):
        self.told = (method, *args)

    async def list_loras(self):
        raise AssertionError("a round trip to the workers for every request")

    async def generate(self, prompt, lora_request):
        self.requests.append((prompt, lora_request and (lora_request.lora_name, lora_request.lora_int_id)))
        yield prompt


class StockServer:
    """What verl's server does with an adapter: one name, if the workers have loaded it."""

    def __init__(self, policies):
        table = {name: asdict(Adapter(name, rank=8, alpha=8, seed=0)) for name in policies}
        self.config = SimpleNamespace(custom={KEY: table} if table else None)

    def _get_worker_extension_cls(self):
        return "verl's"

    async def run_server(self, args):
        self.engine = Engine()

    async def run_headless(self, args): ...

    async def set_global_steps(self, step): ...

    async def generate(self, prompt):
        lora_request = "verl's" if 123 in await self.engine.list_loras() else None
        # A weight sync may take place here.
        await asyncio.sleep(0)
        return [output async for output in self.engine.generate(prompt=prompt, lora_request=lora_request)]


class Server(AdapterServer, StockServer): ...


@pytest.fixture
def start(monkeypatch):
    module = ModuleType("vllm.lora.request")
    module.LoRARequest = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm.lora.request", module)

    async def start(*policies, pushes=1):
        server = Server(policies)
        await server.run_server(Namespace(max_loras=1))
        for step in range(pushes):
            await server.set_global_steps(step)
        return server

    return start


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("part", ["run_server", "run_headless"])
def test_every_adapter_of_a_base_has_a_place_in_every_batch(part, spare):
    server, args = Server(["a", "b", "c"]), Namespace(max_loras=1)
    server.spare_slots = spare
    asyncio.run(getattr(server, part)(args))
    assert args.max_loras == args.max_cpu_loras == 3 + spare


def test_each_request_gets_its_adapter_and_no_other_one_does(start):
    async def session():
        server = await start("a", "b")
        await asyncio.gather(*[server.generate(name, adapter=name) for name in "abba"], server.generate("base"))
        return server.engine

    engine = asyncio.run(session())
    ids = dict(engine.requests)
    assert engine.told == ("set_adapters", {name: ids[name][1] for name in "ab"})
    assert sorted(engine.requests[:4]) == sorted((name, (f"mas_{name}@1", ids[name][1])) for name in "abba")
    assert engine.requests[4] == ("base", None) and ids["a"] != ids["b"]


def test_new_weights_have_a_new_name_and_the_old_number(start):
    """The prefix cache knows adapters by name, and the workers by number."""

    async def session():
        server = await start("a")
        await server.generate("before", adapter="a")
        waiting = asyncio.ensure_future(server.generate("during", adapter="a"))
        await asyncio.sleep(0)
        # The same step again, as after a resumed checkpoint.
        await server.set_global_steps(0)
        await waiting
        return dict(server.engine.requests)

    seen = asyncio.run(session())
    assert seen["before"][0] == "mas_a@1" and seen["during"][0] == "mas_a@2"
    assert seen["before"][1] == seen["during"][1]


@pytest.mark.parametrize(("pushes", "adapter"), [(1, "c"), (0, "a")])
def test_a_request_that_would_end_the_engine_does_not_reach_it(start, pushes, adapter):
    async def session():
        server = await start("a", pushes=pushes)
        with pytest.raises(RequestError):
            await server.generate("bad", adapter=adapter)
        assert await server.generate("base") == ["base"]

    asyncio.run(session())


def test_a_policy_with_weights_of_its_own_has_verls_server():
    server, args = Server([]), Namespace(max_loras=1)
    asyncio.run(server.run_server(args))
    assert args == Namespace(max_loras=1) and type(server.engine) is Engine
    extensions = [Server(table)._get_worker_extension_cls() for table in ([], ["a"])]  # noqa: SLF001
    assert extensions == ["verl's", EXTENSION]
