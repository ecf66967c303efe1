import asyncio

import pytest
import torch
from transformers import PreTrainedModel
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode

from verl_mas.engines.adapters import stream_name
from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.engines.transformers.weights import pack
from verl_mas.errors import EngineLost, RequestError

RANKS = {"solver": 2, "verifier": 4}
TABLE = {name: {"policy": name, "rank": rank, "alpha": 8, "seed": 0} for name, rank in RANKS.items()}


def config(**settings):
    lengths = {"prompt_length": 32, "response_length": 16, "max_model_len": 128}
    return RolloutConfig(**{"name": ENGINE, "tensor_model_parallel_size": 1, "dtype": "float32", **lengths, **settings})


@pytest.fixture
def make_server(model_path):
    threads = torch.get_num_threads()

    def make(device="cpu", **settings):
        model = HFModelConfig(path=str(model_path))
        return TransformersServer(
            "transformers_server_main_0", config(**settings), model, RolloutMode.HYBRID, 0, device
        )

    yield make
    torch.set_num_threads(threads)


def ask(server, prompt=(5, 6), request_id="r", adapter=None, **params):
    return server.generate(list(prompt), params, request_id, image_data=None, video_data=None, adapter=adapter)


def long_request(server, **given):
    return asyncio.create_task(ask(server, max_tokens=100, ignore_eos=True, **given))


async def sampled(server, count=1):
    """Wait until the running requests have `count` tokens."""
    while (tokens := sum(len(sample.tokens) for sample in server.futures)) < count:
        await asyncio.sleep(0)
    return tokens


async def test_concurrent_calls_are_answered_with_tokens_log_probs_and_the_step(make_server):
    server = make_server()
    await server.set_global_steps(7)
    outputs = await asyncio.gather(*[ask(server, [5, 6, i + 3], logprobs=i % 2 == 0) for i in range(64)])
    assert all(len(output.token_ids) <= 16 for output in outputs)
    assert all(len(output.log_probs) == len(output.token_ids) for output in outputs[::2])
    assert all(output.log_probs is None for output in outputs[1::2])
    assert {output.extra_fields["global_steps"] for output in outputs} == {7}
    assert {output.stop_reason for output in outputs} <= {"stop", "length"}


async def test_a_bad_request_fails_alone(make_server):
    server = make_server()
    image = server.generate([5], {}, "r", image_data=["picture"])
    no_numbers = ask(server, [5], repetition_penalty=1e-45)
    calls = [ask(server), ask(server, [5] * 128), image, no_numbers]
    good, *bad = await asyncio.gather(*calls, return_exceptions=True)
    assert good.token_ids
    assert [type(error) for error in bad] == [RequestError] * 3
    assert "128 tokens of the engine" in str(bad[0])


async def test_full_determinism_takes_the_seed_from_the_request(make_server):
    servers = make_server(full_determinism=True), make_server(full_determinism=True)
    tokens = [(await ask(server, request_id=name)).token_ids for server in servers for name in ("a", "b")]
    assert tokens[0] == tokens[2] != tokens[1] == tokens[3]


async def test_abort_ends_running_requests_and_holds_new_ones_until_resumed(make_server):
    server = make_server()
    call = long_request(server)
    await sampled(server)
    assert (await server.abort_all_requests())["aborted_count"] == 1
    held = asyncio.create_task(ask(server, max_tokens=3))
    await asyncio.sleep(0.01)
    assert not held.done()
    await server.resume_generation()
    await server.abort_all_requests(reject_request=True)
    rejected = await ask(server)
    await server.resume_generation()
    running = await call
    assert running.stop_reason == "aborted" and len(running.token_ids) < 100
    assert len((await held).token_ids) == 3
    assert (rejected.stop_reason, rejected.token_ids) == ("aborted", [])


async def test_a_cancelled_call_leaves_the_batch(make_server):
    server = make_server()
    call = long_request(server)
    await sampled(server)
    call.cancel()
    await asyncio.wait([call])
    assert server.batcher.idle


@pytest.mark.parametrize("tags", [("kv_cache", "weights"), ("weights", "kv_cache")])
async def test_weights_leave_the_gpu_while_the_engine_sleeps_and_return_before_it_serves(
    make_server, monkeypatch, tags
):
    device = ["cpu"]
    monkeypatch.setattr(PreTrainedModel, "to", lambda model, name: device.append(name) or model)
    server = make_server(device="cuda")
    assert device[-1] == "cuda"
    await server.sleep()
    assert device[-1] == "cpu"
    for tag in tags:
        with pytest.raises(RequestError, match="wake_up"):
            await ask(server)
        await server.wake_up(tags=[tag])
    await server.wake_up()
    assert (await ask(server)).token_ids
    assert device == ["cpu", "cuda", "cpu", "cuda"]


async def test_weights_change_between_two_tokens_of_a_running_request(make_server):
    server = make_server()
    await server.set_global_steps(1)
    call = long_request(server)
    before = await sampled(server, 5)
    weights = {name: tensor * 1.5 for name, tensor in server.batcher.model.state_dict().items()}
    *first, last = [bucket async for bucket in pack(weights.items(), 50_000)]
    counts = []
    for bucket in first:
        await server.update_weights(bucket, last=False)
        counts.append(sum(len(sample.tokens) for sample in server.futures))
        # Sleep longer than a step takes.
        await asyncio.sleep(0.02)
    await server.update_weights(last, last=True, global_steps=2)
    steps = (await call).extra_fields
    assert (steps["min_global_steps"], steps["max_global_steps"]) == (1, 2)
    # No token was sampled from a mix of old and new weights.
    assert len(counts) > 1 and len(set(counts)) == 1 and counts[0] >= before
    assert steps["versions"] == [[counts[0], 1], [100 - counts[0], 2]]


def adapter_weights(server, scale):
    """Yield the weights of q_proj, by their names in a push."""
    module, linear = "model.layers.0.self_attn.q_proj", server.batcher.model.model.layers[0].self_attn.q_proj
    for policy, rank in RANKS.items():
        for side, shape in (("A", (rank, linear.in_features)), ("B", (linear.out_features, rank))):
            torch.manual_seed(rank)
            tensor = scale * torch.randn(shape)
            yield stream_name(policy, f"base_model.model.{module}.lora_{side}.weight"), tensor


async def test_adapters_change_together_between_two_tokens_and_the_base_never(make_server):
    async def push(server, scale, step):
        *first, last = [bucket async for bucket in pack(adapter_weights(server, scale), 1)]
        for bucket in first:
            await server.update_weights(bucket, last=False)
        before = [(await ask(server, adapter=name, temperature=0)).log_probs for name in TABLE] if step > 1 else None
        await server.update_weights(last, last=True, global_steps=step)
        return before

    server = make_server(custom={"adapters": TABLE})
    weights = {name: tensor.clone() for name, tensor in server.batcher.model.state_dict().items()}
    with pytest.raises(RequestError, match="not received its weights"):
        await ask(server, adapter="solver")
    await push(server, 1.0, 1)
    call = long_request(server, adapter="solver")
    await sampled(server)
    first = [(await ask(server, adapter=name, temperature=0)).log_probs for name in (None, *TABLE)]
    with pytest.raises(RequestError, match="the engine has solver, verifier"):
        await ask(server, adapter="slover")
    # Rounding depends on the batch, and only some of the batches contain the long request.
    assert await push(server, 2.0, 2) == [pytest.approx(log_probs, abs=1e-5) for log_probs in first[1:]]
    second = [(await ask(server, adapter=name, temperature=0)).log_probs for name in (None, *TABLE)]
    with pytest.raises(EngineLost, match="weights of model"):
        await server.update_weights(await anext(pack(weights.items(), 1 << 30)), last=True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in server.batcher.model.state_dict().items())
    steps = (await call).extra_fields
    assert (steps["min_global_steps"], steps["max_global_steps"]) == (1, 2)
    assert second[0] == pytest.approx(first[0], abs=1e-5)
    assert all(second[place] != pytest.approx(first[place], abs=1e-3) for place in (1, 2))
    assert len({tuple(log_probs) for log_probs in first}) == 3


async def test_a_failed_engine_names_itself_to_running_and_later_calls(make_server, monkeypatch):
    """One of the callers is cancelled when the engine fails."""
    server = make_server()

    def fail():
        next(iter(server.futures.values())).cancel()
        raise MemoryError("no more")

    monkeypatch.setattr(server.batcher, "step", fail)
    running = asyncio.gather(*[ask(server) for _ in range(3)], return_exceptions=True)
    cancelled, *failed = await asyncio.wait_for(running, 60)
    assert isinstance(cancelled, asyncio.CancelledError)
    failed += await asyncio.gather(ask(server), return_exceptions=True)
    for error in failed:
        assert isinstance(error, EngineLost)
        assert "transformers_server_main_0 failed: MemoryError: no more" in str(error)
