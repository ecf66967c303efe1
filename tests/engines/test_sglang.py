"""Additions of verl-mas to verl's SGLang server and its sender of weights, on fakes of both.

test_sglang_cpu tests them with SGLang's own scheduler.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.engines.adapters import current_adapter, stream_name
from verl_mas.engines.kinds import sglang
from verl_mas.engines.kinds.sglang import AdapterSender, TeamManager, TeamSglang
from verl_mas.errors import EngineLost, RequestError


def custom(*policies: str) -> dict[str, object]:
    return {KEY: {name: asdict(Adapter(name, rank=8, alpha=8, seed=0)) for name in policies}}


class Manager:
    """Stand-in for SGLang's tokenizer manager. `deaf`: the number of aborts that it ignores at first, like aborts of
    requests that have not arrived yet."""

    def __init__(self) -> None:
        self.rid_to_state: dict[str, asyncio.Event] = {}
        self.deaf, self.aborts, self.resumed = 0, [], []

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self.aborts.append("all" if abort_all else rid)
        for name, ended in self.rid_to_state.items():
            if len(self.aborts) > self.deaf and (abort_all or name == rid):
                ended.set()

    async def flush_cache(self, timeout_s: float) -> SimpleNamespace:
        return SimpleNamespace(success=all(ended.is_set() for ended in self.rid_to_state.values()))

    async def resume_memory_occupation(self, obj: SimpleNamespace, request: object) -> None:
        self.resumed.append(obj.tags)


class StockServer:
    """Stand-in for verl's server. A request runs until it is aborted, or until a test ends it."""

    node_rank, global_steps, lora_as_adapter, slept = 0, 7, False, 0
    model_config = SimpleNamespace(processor=None)

    async def launch_server(self) -> None:
        self.manager = self.tokenizer_manager = Manager()

    async def generate(self, request_id: str) -> str:
        ended = self.tokenizer_manager.rid_to_state[request_id] = asyncio.Event()
        await ended.wait()
        return request_id

    async def sleep(self) -> None:
        assert not any(not ended.is_set() for ended in self.tokenizer_manager.rid_to_state.values())
        self.slept += 1

    release_kv_cache = sleep


class Server(TeamSglang, StockServer): ...  # type: ignore[misc]


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(sglang, "ABORT_AGAIN_S", 0.001)
    monkeypatch.setattr(sglang, "DRAIN_S", 0.05)
    monkeypatch.setenv(sglang.IMAGES_MB, "0")

    async def start(*policies: str, **options: object) -> Any:
        server = Server()
        server.config = SimpleNamespace(custom=custom(*policies), engine_kwargs={"sglang": options})
        await server.launch_server()
        return server

    return start


async def running(server, *names: str) -> list[asyncio.Task]:
    tasks = [asyncio.ensure_future(server.generate(request_id=name)) for name in names]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_a_cancelled_request_is_aborted_until_it_ends_and_leaves_nothing_behind(start):
    server = await start()
    cancelled, other = await running(server, "cancelled", "other")
    server.manager.deaf = 2
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled() and set(server.manager.aborts) == {"cancelled"}
    assert len(server.manager.aborts) > 2 and list(server.manager.rid_to_state) == ["other"]
    server.manager.abort_request("other")
    assert await other == "other"


@pytest.mark.parametrize("call", ["sleep", "pause", "release_kv_cache"])
async def test_memory_is_freed_when_no_request_runs_and_after_the_limit_they_are_aborted(start, call):
    server = await start()
    (ends,) = await running(server, "ends")
    asyncio.get_running_loop().call_later(0.01, server.manager.rid_to_state["ends"].set)
    await getattr(server, call)()
    assert (ends.result(), server.slept, server.manager.aborts) == ("ends", 1, [])
    await running(server, "long")
    await getattr(server, call)()
    assert (server.slept, server.manager.aborts) == (2, ["all"])
    await running(server, "stuck")
    server.manager.deaf = 1000
    with pytest.raises(EngineLost, match="did not end its requests"):
        await getattr(server, call)()
    assert server.slept == 2
    with pytest.raises(EngineLost, match="did not end its requests"):
        await server.abort_all_requests()


async def test_an_abort_ends_all_requests_and_rejects_later_ones_until_sampling_resumes(start):
    server = await start()
    tasks = await running(server, "a", "b")
    server.manager.deaf = 1
    await server.abort_all_requests()
    assert [task.result() for task in tasks] == ["a", "b"]
    late = await asyncio.wait_for(server.generate(request_id="late"), 10)
    assert (late.stop_reason, late.token_ids, late.extra_fields) == ("abort", [], {"global_steps": 7})
    await server.resume_generation()
    (task,) = await running(server, "again")
    server.manager.abort_request("again")
    assert await task == "again"


@pytest.mark.parametrize("lora", [False, True])
async def test_an_engine_in_phases_takes_back_what_verls_sleep_gave(start, monkeypatch, lora):
    messages = ModuleType("sglang.srt.managers.io_struct")
    messages.ResumeMemoryOccupationReqInput = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, messages.__name__, messages)
    server = await start()
    server.lora_as_adapter = lora
    await server.unpause()
    assert server.manager.resumed == [["kv_cache"] if lora else ["kv_cache", "weights"]]


@pytest.mark.parametrize("given", [None, "50"])
async def test_the_vision_towers_outputs_are_not_kept_for_new_weights_and_each_adapter_has_a_place(
    start, monkeypatch, given
):
    monkeypatch.setenv(sglang.IMAGES_MB, given) if given else monkeypatch.delenv(sglang.IMAGES_MB)
    servers = [await start("a", "b"), await start("a", "b", max_loras_per_batch=2), await start()]
    assert os.environ[sglang.IMAGES_MB] == (given or "0")
    options = [server.config.engine_kwargs["sglang"] for server in servers]
    assert options == [{"max_loras_per_batch": 3}, {"max_loras_per_batch": 2}, {}], "the base counts as one"


class Reads:
    """A tokenizer manager that reports `read` tokens for each prompt."""

    def __init__(self, read: int | None):
        self.meta = {} if read is None else {"prompt_tokens": read}

    async def generate_request(self, obj: SimpleNamespace, request: object) -> AsyncIterator[Any]:
        yield {"tokens": obj.input_ids, "adapter": obj.lora_path, "meta_info": self.meta}


QWEN = SimpleNamespace(image_processor=type("Qwen2VLImageProcessorFast", (), {})(), image_token_id=9, video_token_id=8)


@pytest.mark.parametrize(("images", "collapsed"), [(["a picture"], [1, 9, 2]), (None, [1, 9, 9, 9, 2])])
@pytest.mark.parametrize("read", [5, None, 4])
async def test_an_image_is_sent_as_one_token_and_a_prompt_that_is_read_otherwise_is_a_fault(images, collapsed, read):
    asked = SimpleNamespace(input_ids=[1, 9, 9, 9, 2], image_data=images, lora_path="verl's")
    replies = TeamManager(Reads(read), {}, QWEN).generate_request(asked)
    if images and read == 4:
        with pytest.raises(RequestError, match="of 5 tokens with images, of which SGLang makes 4"):
            await anext(replies)
    else:
        reply = await anext(replies)
        assert (reply["tokens"], reply["adapter"]) == (collapsed, "verl's")


@pytest.mark.parametrize(("policy", "name"), [("b", "mas_b"), (None, None)])
async def test_a_request_has_its_own_adapter_in_place_of_verls(policy, name):
    manager = TeamManager(Reads(None), {name: Adapter(name, rank=8, alpha=8, seed=0) for name in "ab"}, None)
    asked = SimpleNamespace(input_ids=[1], image_data=None, lora_path="verl's")
    current_adapter.set(policy)
    assert (await anext(manager.generate_request(asked)))["adapter"] == name


async def test_each_adapter_is_loaded_again_and_the_server_counts_the_update_when_all_are():
    calls: list[object] = []

    def call(name: str, answer: object = None) -> Any:
        async def called(*given: object) -> object:
            calls.append((name, *given))
            return answer

        return called

    class Sender(AdapterSender):
        config = SimpleNamespace(custom=custom("a", "b"))
        _engine = SimpleNamespace(
            available_models=call("models", {"data": [{"id": "mas_a"}]}),
            unload_lora_adapter=call("unload"),
            flush_cache=call("flush"),
        )
        _init_server_adapter, _load = staticmethod(call("init")), staticmethod(call("load"))
        server_actor = SimpleNamespace(set_global_steps=SimpleNamespace(remote=call("steps")))

        def __init__(self, leads: bool):
            self._is_server_tp_leader = lambda: leads

    def push(leads: bool, *names: str) -> Any:
        stream = iter([(stream_name(name, "A"), f"A of {name}") for name in names])
        return Sender(leads).update_weights(stream, 3, peft_config={name: f"config of {name}" for name in "ab"})

    await push(True, "a", "b")
    loads = [("load", f"mas_{name}", f"config of {name}", {"A": f"A of {name}"}) for name in "ab"]
    assert calls == [
        ("init",), ("models",), ("unload", "mas_a"), *loads, ("flush",), ("steps", 3),
    ]  # fmt: skip
    calls.clear()
    await push(False, "a", "b")
    assert [name for name, *_ in calls] == ["init"], "another worker of the engine only gathers"
    with pytest.raises(EngineLost, match="nothing of b"):
        await push(True, "a")
