"""Replies whose engine is aborted: what the client makes of their parts, with the embedded engine and with scripts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode

from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.engines.transformers.weights import pack
from verl_mas.rollout.adapter_client import AdapterClient
from verl_mas.rollout.gates import Gate
from verl_mas.rollout.resuming_client import ResumingClient
from verl_mas.trainer.servers import OnlyServerClient
from verl_mas.warmup.tiny_model import tiny_model

ROLLOUT = {
    "name": "transformers",
    "prompt_length": 32,
    "response_length": 48,
    "max_model_len": 128,
    "full_determinism": True,
}


class Client(ResumingClient, OnlyServerClient):
    pass


class AdapterOf(AdapterClient, ResumingClient, OnlyServerClient):
    pass


def client_of(generate, tokenizer, kind=Client, **rollout):
    """A client of an engine whose `generate` is given."""

    def remote(**kwargs):
        return asyncio.ensure_future(generate(**kwargs))

    handle = SimpleNamespace(generate=SimpleNamespace(remote=remote))
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**ROLLOUT, **rollout}}})
    own = {"adapter": "verifier"} if kind is AdapterOf else {}
    client = kind(config=config, load_balancer_handle=None, server=handle, **own)
    client.gate, client.decode = Gate(), tokenizer.decode
    return client


def ask(client, number=0, **params):
    params = {"temperature": 1.0, "logprobs": True, "ignore_eos": True, **params}
    call = client.generate(request_id=f"r{number}", prompt_ids=[5, 6, 7 + number], sampling_params=params)
    return asyncio.ensure_future(call)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"), parameters=100_000)


@pytest.fixture
def engine(model_path):
    threads = torch.get_num_threads()

    def make():
        config = RolloutConfig(**ROLLOUT, tensor_model_parallel_size=1, dtype="float32", max_num_seqs=4)
        model = HFModelConfig(path=str(model_path))
        return TransformersServer("engine", config, model, RolloutMode.HYBRID, 0, "cpu")

    yield make
    torch.set_num_threads(threads)


async def abort_at(server, gate, tokens, meanwhile=None):
    """As a step of training: the gate is closed, the engine is aborted, and both serve again."""
    while not server.futures or sum(len(sample.tokens) for sample in server.futures) < tokens:
        await asyncio.sleep(0)
    gate.close()
    await server.abort_all_requests(reject_request=True)
    if meanwhile is not None:
        await meanwhile()
    await server.resume_generation()
    gate.open()


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"repetition_penalty": 1.3, "top_p": 0.9, "seed": 4}])
def test_aborted_three_times_with_the_same_weights_is_the_uninterrupted_reply(engine, tokenizer, params):
    # With seven requests and four rows some are aborted before they run.
    async def replies(aborts):
        server = engine()
        client = client_of(server.generate, tokenizer)
        asked = [ask(client, number, **params) for number in range(7)]
        for _ in range(aborts):
            await abort_at(server, client.gate, 31)
        return await asyncio.gather(*asked)

    whole, cut = asyncio.run(replies(0)), asyncio.run(replies(3))
    assert sum(reply.extra_fields["aborts"] for reply in cut) >= 7
    for one, other in zip(whole, cut, strict=True):
        assert one.token_ids == other.token_ids and len(one.token_ids) == 48
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-5)
        assert (one.stop_reason, one.extra_fields["aborts"]) == (other.stop_reason, 0) == ("length", 0)


def test_after_a_change_of_weights_the_rest_is_of_the_new_ones_and_the_beginning_stays(engine, tokenizer):
    async def scenario():
        server = engine()
        client = client_of(server.generate, tokenizer)
        model = server.batcher.model
        new = {name: tensor * 1.2 for name, tensor in model.state_dict().items()}

        async def train():
            for bucket in (buckets := list(pack(new.items(), 50_000))):
                await server.update_weights(bucket, bucket is buckets[-1], 2)

        await server.set_global_steps(1)
        asked = [ask(client, number) for number in range(3)]
        await abort_at(server, client.gate, 40, train)
        return await asyncio.gather(*asked), model

    async def undisturbed():
        client = client_of(engine().generate, tokenizer)
        return await asyncio.gather(*[ask(client, number) for number in range(3)])

    replies, model = asyncio.run(scenario())
    for number, (reply, before) in enumerate(zip(replies, asyncio.run(undisturbed()), strict=True)):
        (old, first), (new, second) = reply.extra_fields["versions"]
        assert (first, second, old + new) == (1, 2, 48) and old > 5 and new > 5
        assert (reply.extra_fields["min_global_steps"], reply.extra_fields["max_global_steps"]) == (1, 2)
        assert reply.token_ids[:old] == before.token_ids[:old]
        assert reply.log_probs[:old] == pytest.approx(before.log_probs[:old], abs=1e-5)
        ids = torch.tensor([[5, 6, 7 + number, *reply.token_ids]])
        with torch.no_grad():
            forced = torch.log_softmax(model(ids).logits[0, 2:-1].float(), -1)
        forced = forced.gather(1, ids[0, 3:, None])[:, 0].tolist()
        assert reply.log_probs[old:] == pytest.approx(forced[old:], abs=1e-5)
        assert reply.log_probs[:old] != pytest.approx(forced[:old], abs=1e-3)


def test_a_stop_string_that_an_abort_cuts_in_two_still_ends_the_reply(engine, tokenizer):
    async def reply(cut, **params):
        server = engine()
        client = client_of(server.generate, tokenizer)
        call = ask(client, **params)
        if cut:
            await abort_at(server, client.gate, cut)
        return await call

    whole = asyncio.run(reply(0))
    # The first pair of tokens that is not there before.
    text = [tokenizer.decode([token]) for token in whole.token_ids]
    end = next(end for end in range(12, 40) if "".join(text[end - 2 : end]) not in "".join(text[: end - 1]))
    stop = "".join(text[end - 2 : end])
    for cut in (0, end - 1):
        found = asyncio.run(reply(cut, stop=[stop]))
        assert (found.token_ids, found.stop_reason) == (whole.token_ids[:end], "stop")
        assert found.extra_fields["aborts"] == (cut > 0)
