"""verl's SGLang server with SGLang's own scheduler, in the environment of `make sglang-cpu`: requests without a caller,
sleep, stop strings, adapters. On a fake of the server: test_sglang."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version
from real_sglang import VERSION, Engines, needs_adapters, needs_sglang
from resuming import client_of

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.engines.adapters import stream_name
from verl_mas.engines.kinds.sglang import AdapterSender, TeamSglang
from verl_mas.errors import RequestError

pytestmark = needs_sglang
STEP_S = 0.01
AT_ONCE = 3
# SGLang joins the adapters of queries, keys and values. It takes zeros for missing keys, but needs the values.
TARGETS = ("q_proj", "v_proj", "o_proj")
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

    async def make(mixin: type = TeamSglang, lora_rank: int = 0, adapters=(), **args: Any):
        class Launched(SGLangHttpServer):
            async def launch_server(self) -> None:
                fixed = {"skip_tokenizer_init": True, "enable_weights_cpu_backup": True}
                options = {**fixed, "max_running_requests": AT_ONCE, **args}
                if self.lora_as_adapter:
                    options.update(enable_lora=True, max_lora_rank=lora_rank, lora_target_modules=list(TARGETS))
                options.update(self.config.engine_kwargs.get("sglang", {}))
                self.tokenizer_manager = await started.start(str(model_path), **options)

        class Server(mixin, Launched): ...  # type: ignore[misc]

        made = object.__new__(Server)
        made._requests = set()
        made.node_rank, made.replica_rank, made.global_steps = 0, 0, 1
        made._disaggregation_role, made.rollout_mode = "null", RolloutMode.HYBRID
        made.model_config = SimpleNamespace(lora_rank=lora_rank, lora={}, processor=None)
        table = {name: asdict(Adapter(name, rank=lora_rank, alpha=8, seed=0)) for name in adapters}
        made.config = SimpleNamespace(
            max_model_len=256, response_length=64, prompt_length=64, free_cache_engine=True, mtp=None,
            enable_rollout_routing_replay=False, engine_kwargs={}, custom={KEY: table},
        )  # fmt: skip
        await made.launch_server()
        return made

    return make


class Stock:
    """No mixin."""


def request(server, number: int = 0, tokens: int = 100, adapter: str | None = None, **params: object) -> asyncio.Task:
    call = server.generate(
        prompt_ids=[1, 2, 3],
        sampling_params={"max_tokens": tokens, "logprobs": True, "ignore_eos": True, **params},
        request_id=f"request-{number:03}-",
        **({"adapter": adapter} if adapter else {}),
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
    """Whether a call ends the scheduler; it never returns then."""
    waiting = asyncio.ensure_future(call)
    until = time.monotonic() + 30
    while not started.deaths and not waiting.done() and time.monotonic() < until:
        await asyncio.sleep(STEP_S)
    died = bool(started.deaths)
    started.deaths.clear()
    return died


async def test_without_the_mixin_a_cancelled_request_runs_on_and_the_sleep_kills_the_engine(server, started):
    """The defect that the mixin is for; should SGLang lose it, so can we."""
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


async def test_aborted_requests_are_resumed_after_a_sleep_and_those_that_come_late_are_rejected(server):
    params = {"max_tokens": 30, "ignore_eos": True, "logprobs": True, "temperature": 0}

    def ask(client, number):
        call = client.generate(request_id=f"r{number}", prompt_ids=[1, 2, 3 + number], sampling_params=params)
        return asyncio.ensure_future(call)

    made = await server()

    async def generate(video_data, **request):
        return await made.generate(**request)

    client = client_of(generate, name="sglang", full_determinism=False)
    whole = await asyncio.gather(*[ask(client, number) for number in range(5)])
    asked = [ask(client, number) for number in range(5)]
    await asyncio.sleep(12 * STEP_S)
    client.gate.close()
    await asyncio.wait_for(made.abort_all_requests(), 5)
    late = await request(made, 9)
    await asyncio.wait_for(made.sleep(), 5)
    await made.unpause()
    await made.set_global_steps(2)
    await made.resume_generation()
    client.gate.open()
    replies = await asyncio.gather(*asked)
    assert (late.stop_reason, late.token_ids, made.tokenizer_manager.rid_to_state) == ("abort", [], {})
    for one, other in zip(whole, replies, strict=True):
        assert one.token_ids == other.token_ids and one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert sum(tokens for tokens, _ in other.extra_fields["versions"]) == 30
    # Three requests run at once; the others were aborted in the queue.
    seen = [[version for _, version in reply.extra_fields["versions"]] for reply in replies]
    assert seen == [[1, 2], [1, 2], [1, 2], [2], [2]]
    assert [reply.extra_fields["aborts"] for reply in replies] == [1] * 5


@pytest.mark.parametrize("lora_rank", [0, 8])
async def test_an_engine_in_phases_takes_back_what_it_gave(server, started, lora_rank):
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

    made = await server(lora_rank=lora_rank, adapters=("a",) if lora_rank else ())
    await cancelled(await running(made))
    await made.pause()
    await made.unpause()
    assert (await request(made, 1, tokens=3)).token_ids
    resumed = made.tokenizer_manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=["weights"]))
    assert await dies(started, resumed), "no memory is left to resume"


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


RANKS = {"a": 8, "b": 4}


def lora(model, name: str, step: int) -> dict[str, torch.Tensor]:
    """An adapter on every layer's targets, by PEFT's names."""
    generator = torch.Generator().manual_seed(step * len(RANKS) + list(RANKS).index(name))
    tensors = {}
    for path, module in [(path, module) for path, module in model.named_modules() if path.endswith(TARGETS)]:
        for side, shape in (("A", (RANKS[name], module.in_features)), ("B", (module.out_features, RANKS[name]))):
            tensors[f"base_model.model.{path}.lora_{side}.weight"] = 0.3 * torch.randn(shape, generator=generator)
    return tensors


async def push(server, model, step: int) -> None:
    """Send weights like a training worker after an update, with verl's own preparation of the tensors."""
    from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput
    from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

    manager = server.tokenizer_manager

    async def models() -> dict[str, object]:
        return {"data": [{"id": adapter.name} for adapter in server.adapters.values() if step > 1]}

    async def load(adapter) -> None:
        answer = await manager.load_lora_adapter_from_tensors(adapter)
        # verl's adapter raises for its HTTP status.
        assert answer.success, answer.error_message

    class Sender(AdapterSender):
        config, device_mesh = server.config, {"infer_tp": SimpleNamespace(mesh=torch.zeros(1))}
        _engine = SimpleNamespace(
            available_models=models,
            unload_lora_adapter=lambda name: manager.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name)),
            load_lora_adapter_from_tensor=load,
            flush_cache=manager.flush_cache,
        )
        server_actor = SimpleNamespace(set_global_steps=SimpleNamespace(remote=server.set_global_steps))
        wrap_lora_params = ServerAdapter.wrap_lora_params

        async def _init_server_adapter(self) -> None: ...

        def _is_server_tp_leader(self) -> bool:
            return True

    names = server.config.custom[KEY]
    stream = [(stream_name(name, key), tensor) for name in names for key, tensor in lora(model, name, step).items()]
    configs = {name: {"peft_type": "LORA", "r": RANKS[name], "lora_alpha": 8, "target_modules": []} for name in names}
    await Sender().update_weights(iter(stream), step, peft_config=configs, base_sync_done=True)


@torch.no_grad()
def distance(model, reply, name: str | None, step: int) -> float:
    """Return the largest difference between the log-probs of a reply and those of the base with the adapter merged."""
    merged = copy.deepcopy(model)
    tensors = lora(model, name, step) if name else {}
    for key in [key for key in tensors if ".lora_A." in key]:
        change = 8 / RANKS[name] * tensors[key.replace("lora_A", "lora_B")] @ tensors[key]
        merged.get_submodule(key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")).weight += change
    ids = [1, 2, 3, *reply.token_ids]
    logits = merged(torch.tensor([ids])).logits[0, 2:-1].log_softmax(-1)
    ours = logits.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    return float((ours - torch.tensor(reply.log_probs)).abs().max())


@needs_adapters
async def test_adapters_and_the_bare_base_share_a_batch_and_each_answers_right_after_every_push(
    server, model, on_the_cpu
):
    made = await server(lora_rank=8, adapters=("a", "b"))
    replies = []
    for step in (1, 2):
        await push(made, model, step)
        policies = ("a", None, "b", "a")
        asked = [request(made, number, tokens=8, adapter=name) for number, name in enumerate(policies)]
        replies += zip(await asyncio.gather(*asked), policies, [step] * 4, strict=True)
    assert made.tokenizer_manager.server_args.max_loras_per_batch == 3 and made.global_steps == 2
    assert max(distance(model, reply, name, step) for reply, name, step in replies) < 1e-5
    others = {"a": "b", "b": None, None: "a"}
    assert min(distance(model, reply, others[name], step) for reply, name, step in replies) > 1e-3


@needs_adapters
@pytest.mark.parametrize(("pushes", "adapter"), [(0, "a"), (1, "c")])
async def test_a_request_without_its_adapter_is_refused_and_the_base_serves(server, model, on_the_cpu, pushes, adapter):
    made = await server(lora_rank=8, adapters=("a",))
    for step in range(pushes):
        await push(made, model, step)
    with pytest.raises(RequestError, match=f"adapter='{adapter}'"):
        await request(made, adapter=adapter)
    assert len((await request(made, 1, tokens=3)).token_ids) == 3
