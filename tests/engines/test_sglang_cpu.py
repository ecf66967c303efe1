"""verl's SGLang server with SGLang's own scheduler, in the environment of `make sglang-cpu`: requests without a caller,
sleep, stop strings. test_sglang uses a fake of the server, and tests/trainer/test_sglang tests whole runs."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from real_sglang import VERSION, Engines, needs_sglang

from verl_mas.config.adapters import KEY
from verl_mas.engines.kinds.sglang import TeamSglang

pytestmark = needs_sglang
STEP_S = 0.01
AT_ONCE = 3
# An engine of SGLang belongs to the event loop that it was started in, and takes too long to start for each test.
LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with Engines(STEP_S) as started:
        yield started


@pytest.fixture
def started(engines) -> Iterator[Engines]:
    """Starts schedulers and records their deaths. A scheduler that dies unexpectedly fails the test."""
    yield engines
    assert not engines.deaths


@pytest.fixture
def server(started, model_path):
    """A server of verl, with or without the mixin, without its HTTP interface and its Ray actor."""
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer

    async def make(mixin: type = TeamSglang, **args: Any):
        class Launched(SGLangHttpServer):
            async def launch_server(self) -> None:
                fixed = {"skip_tokenizer_init": True, "enable_weights_cpu_backup": True}
                options = {**fixed, "max_running_requests": AT_ONCE, **args}
                self.tokenizer_manager = await started.start(str(model_path), **options)

        class Server(mixin, Launched): ...  # type: ignore[misc]

        made = object.__new__(Server)
        made._requests = set()
        made.node_rank, made.replica_rank, made.global_steps = 0, 0, 1
        made._disaggregation_role, made.rollout_mode = "null", RolloutMode.HYBRID
        made.model_config = SimpleNamespace(lora_rank=0, lora={}, processor=None)
        made.config = SimpleNamespace(
            max_model_len=256, response_length=64, prompt_length=64, free_cache_engine=True, mtp=None,
            enable_rollout_routing_replay=False, engine_kwargs={}, custom={KEY: {}},
        )  # fmt: skip
        await made.launch_server()
        return made

    return make


class Stock:
    """No mixin."""


def request(server, number: int = 0, tokens: int = 100, **params: object) -> asyncio.Task:
    call = server.generate(
        prompt_ids=[1, 2, 3],
        sampling_params={"max_tokens": tokens, "logprobs": True, "ignore_eos": True, **params},
        request_id=f"request-{number:03}-",
    )
    return asyncio.ensure_future(call)


async def running(server, *args: object, steps: int = 2, **kwargs: object) -> asyncio.Task:
    """A request, after some steps of the scheduler."""
    task = request(server, *args, **kwargs)
    await asyncio.sleep(steps * STEP_S)
    return task


async def cancelled(*requests: asyncio.Task) -> None:
    for task in requests:
        task.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


async def dies(started, call) -> bool:
    """Whether a call ends the scheduler. A call that ends it never returns."""
    waiting = asyncio.ensure_future(call)
    until = time.monotonic() + 30
    while not started.deaths and not waiting.done() and time.monotonic() < until:
        await asyncio.sleep(STEP_S)
    died = bool(started.deaths)
    started.deaths.clear()
    return died


async def test_without_the_mixin_a_cancelled_request_runs_on_and_the_sleep_kills_the_engine(server, started):
    """The mixin is a workaround for this defect. If SGLang fixes the defect, the mixin can be removed."""
    made = await server(Stock)
    await cancelled(await running(made, steps=5))
    await asyncio.sleep(5 * STEP_S)
    assert not (await made.tokenizer_manager.flush_cache()).success
    assert await dies(started, made.sleep())


async def test_two_hundred_cancelled_requests_end_and_the_engine_sleeps_at_once(server):
    """One request is cancelled before the scheduler has received it."""
    made = await server()
    for first in range(0, 200, 50):
        requests = [request(made, first + number) for number in range(50)]
        await asyncio.sleep(2 * STEP_S)
        await cancelled(*requests)
    early = request(made, 200)
    await asyncio.sleep(0)
    await cancelled(early)
    await asyncio.wait_for(made.sleep(), 60)
    assert made.tokenizer_manager.rid_to_state == {}
    await made.unpause()


async def test_a_queued_request_leaves_nothing_behind_and_its_id_can_be_used_again(server):
    made = await server()
    first = [request(made, number, tokens=20) for number in range(AT_ONCE)]
    await cancelled(await running(made, AT_ONCE, steps=3))
    again = request(made, AT_ONCE, tokens=3)
    assert [len((await one).token_ids) for one in (*first, again)] == [20, 20, 20, 3]


@pytest.mark.parametrize("skips", [True, False])
async def test_an_engine_without_a_tokenizer_dies_of_a_stop_string_or_from_0_5_14_on_refuses_it(server, started, skips):
    made = await server(skip_tokenizer_init=skips)
    asked = request(made, tokens=5, stop=["no such text"])
    if skips and VERSION and Version(VERSION) >= Version("0.5.14"):
        for refused in (asked, request(made, 1, min_new_tokens=3)):
            with pytest.raises(ValueError, match="requires tokenizer"):
                await refused
    else:
        assert await dies(started, asked) is skips
