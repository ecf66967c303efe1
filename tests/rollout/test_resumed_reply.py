"""Replies whose engine was aborted: the client joins their parts, from the embedded engine and from scripts."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from resuming import ROLLOUT, client_of
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from verl_mas.engines.transformers.adapter import ServerAdapter
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.rollout.resumed_reply import ResumedReply, keep
from verl_mas.testing.tiny_model import tiny_model


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
    """Close the gate, abort the engine, and let both serve again, as a training step does."""
    while not server.futures or sum(len(sample.tokens) for sample in server.futures) < tokens:
        await asyncio.sleep(0)
    gate.close()
    await server.abort_all_requests(reject_request=True)
    if meanwhile is not None:
        await meanwhile()
    await server.resume_generation()
    gate.open()


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"repetition_penalty": 1.3, "top_p": 0.9, "seed": 4}])
async def test_aborted_three_times_with_the_same_weights_is_the_uninterrupted_reply(engine, params):
    # The engine has four rows, so some of the seven requests are aborted before they run.
    async def replies(aborts):
        server = engine()
        client = client_of(server.generate)
        asked = [ask(client, number, **params) for number in range(7)]
        for _ in range(aborts):
            await abort_at(server, client.gate, 31)
        return await asyncio.gather(*asked)

    whole, cut = await replies(0), await replies(3)
    assert sum(reply.extra_fields["aborts"] for reply in cut) >= 7
    for one, other in zip(whole, cut, strict=True):
        assert one.token_ids == other.token_ids and len(one.token_ids) == 48
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-5)
        assert (one.stop_reason, one.extra_fields["aborts"]) == (other.stop_reason, 0) == ("length", 0)


async def test_after_a_change_of_weights_the_rest_is_of_the_new_ones_and_the_beginning_stays(engine):
    server = engine()
    client = client_of(server.generate)
    model = server.batcher.model
    new = {name: tensor * 1.2 for name, tensor in model.state_dict().items()}

    async def train():
        adapter = ServerAdapter(server.config, None, None, replica_rank=0)
        adapter._server = SimpleNamespace(update_weights=SimpleNamespace(remote=server.update_weights))  # noqa: SLF001
        await adapter.update_weights(iter(new.items()), global_steps=2)

    await server.set_global_steps(1)
    asked = [ask(client, number) for number in range(3)]
    await abort_at(server, client.gate, 40, train)
    replies = await asyncio.gather(*asked)
    other = client_of(engine().generate)
    undisturbed = await asyncio.gather(*[ask(other, number) for number in range(3)])
    for number, (reply, before) in enumerate(zip(replies, undisturbed, strict=True)):
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


async def test_a_stop_string_that_an_abort_cuts_in_two_still_ends_the_reply(engine, tokenizer):
    async def reply(cut, **params):
        server = engine()
        client = client_of(server.generate)
        call = ask(client, **params)
        if cut:
            await abort_at(server, client.gate, cut)
        return await call

    whole = await reply(0)
    # Use the first pair of tokens whose text does not occur before it.
    text = [tokenizer.decode([token]) for token in whole.token_ids]
    end = next(end for end in range(12, 40) if "".join(text[end - 2 : end]) not in "".join(text[: end - 1]))
    stop = "".join(text[end - 2 : end])
    for cut in (0, end - 1):
        stopped = await reply(cut, stop=[stop])
        assert (stopped.token_ids, stopped.stop_reason) == (whole.token_ids[:end], "stop")
        assert stopped.extra_fields["aborts"] == (cut > 0)


class Script:
    """An engine with given replies, each of token ids and a stop reason. The gate is closed for every abort."""

    def __init__(self, *replies, close=True):
        self.replies, self.close, self.requests = list(replies), close, []
        self.client = None

    async def __call__(self, **request):
        ids, reason, *rest = self.replies[len(self.requests)]
        self.requests.append(request)
        if reason in ("abort", "aborted") and self.close:
            self.client.gate.close()
            asyncio.get_running_loop().call_later(0.01, self.client.gate.open)
        fields = {"global_steps": len(self.requests), **(rest[0] if rest else {})}
        log_probs = [-float(token) for token in ids]
        return TokenOutput(token_ids=ids, log_probs=log_probs, stop_reason=reason, extra_fields=fields)


def scripted(*replies, adapter=None, close=True, params=None, **rollout):
    script = Script(*replies, close=close)
    client = client_of(script, adapter, **{"name": "vllm", **rollout})
    script.client = client

    async def scenario():
        return await ask(client, **(params or {}))

    return asyncio.run(scenario()), script.requests


@pytest.mark.parametrize("adapter", [None, "verifier"])
def test_the_parts_of_a_reply_are_joined_and_the_rest_of_its_tokens_is_asked_for(adapter):
    reply, requests = scripted(
        ([1, 2], "aborted"), ([], "aborted"), ([3], "aborted"), ([4, 5], "completed"),
        adapter=adapter, params={"max_tokens": 20, "min_tokens": 4, "seed": 7},
    )  # fmt: skip
    assert (reply.token_ids, reply.log_probs) == ([1, 2, 3, 4, 5], [-1.0, -2.0, -3.0, -4.0, -5.0])
    assert reply.stop_reason == "completed"
    fields = reply.extra_fields
    assert fields["versions"] == [[2, 1], [1, 3], [2, 4]]
    assert (fields["aborts"], fields["min_global_steps"], fields["max_global_steps"]) == (3, 1, 4)
    assert [request["prompt_ids"][3:] for request in requests] == [[], [1, 2], [1, 2], [1, 2, 3]]
    asked = [
        [request["sampling_params"][name] for name in ("max_tokens", "min_tokens", "seed")] for request in requests
    ]
    assert asked == [[20, 4, 7], [18, 2, 9], [18, 2, 9], [17, 1, 10]]
    assert all("drawn" not in request for request in requests)
    assert [request.get("adapter") for request in requests] == [adapter] * 4


def test_a_reply_that_no_engine_aborted_is_the_engines_own():
    reply, [request] = scripted(([1, 2], "stop"))
    assert (reply.token_ids, reply.log_probs, reply.stop_reason) == ([1, 2], [-1.0, -2.0], "stop")
    assert request["sampling_params"] == {"temperature": 1.0, "logprobs": True, "ignore_eos": True}
    assert (reply.extra_fields["aborts"], reply.extra_fields["versions"]) == (0, [[2, 1]])


async def test_media_are_sent_again_with_the_rest():
    script = Script(([1], "aborted"), ([2], "completed"))
    script.client = client = client_of(script, name="vllm")
    media = {"image_data": ["picture"], "mm_processor_kwargs": {"fps": 2}}
    await client.generate("r", prompt_ids=[5], sampling_params={}, **media)
    assert len(script.requests) == 2 and all(media.items() <= request.items() for request in script.requests)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, 5),  # the response length
        ({"response_length": 99, "max_model_len": 8}, 5),  # the context, less a prompt of 3
        ({"response_length": 4, "prompt_length": 4}, 4),
        ({"response_length": 4, "prompt_length": 1}, 2),  # a prompt that is too long takes from the reply
    ],
)
def test_without_max_tokens_a_reply_in_parts_is_as_long_as_one_in_one_part(limits, most):
    settings = {"response_length": 5, "prompt_length": 32, "max_model_len": None, **limits}
    replies = [([9] * (most - 1), "aborted"), ([9], "completed")]
    reply, requests = scripted(*replies, **settings)
    assert requests[1]["sampling_params"]["max_tokens"] == 1
    assert len(reply.token_ids) == most
    # A reply that is aborted at its last token is complete, so no further request is sent.
    reply, requests = scripted(([9] * most, "aborted"), **settings)
    assert (len(requests), reply.stop_reason, len(reply.token_ids)) == (1, "length", most)


def test_an_engine_that_refuses_a_request_is_not_asked_again():
    reply, requests = scripted(([], "abort"), close=False)
    assert (len(requests), reply.token_ids, reply.stop_reason) == (1, [], "abort")
    reply, requests = scripted(([1], "abort"), ([], "abort"), close=False)
    assert (len(requests), reply.token_ids, reply.stop_reason) == (2, [1], "abort")


@pytest.mark.parametrize("setting", [{"structured_outputs": {"regex": "a+"}}, {"presence_penalty": 0.5}])
def test_a_reply_whose_settings_depend_on_where_it_begins_restarts(setting):
    reply, requests = scripted(([1, 2], "aborted"), ([3], "completed"), params=setting)
    assert (reply.token_ids, reply.extra_fields["aborts"], reply.extra_fields["versions"]) == ([3], 1, [[1, 2]])
    assert requests[0] == requests[1]
    reply, _ = scripted(([1, 2], "aborted"), ([3], "completed"), params=dict.fromkeys(setting))
    assert reply.token_ids == [1, 2, 3]


@pytest.mark.parametrize("name", ["vllm", "sglang", "transformers"])
def test_the_client_cuts_a_reply_at_a_stop_string_that_begins_before_an_abort(tokenizer, name):
    first, rest = tokenizer.encode("so it is <e"), tokenizer.encode("nd> and more")

    reply, _ = scripted(
        (first, "aborted"), (rest, "completed", {"versions": [[2, 8], [len(rest) - 2, 9]]}),
        name=name, params={"stop": ["<end>", "never"]},
    )  # fmt: skip
    assert tokenizer.decode(reply.token_ids) == "so it is <end>"
    assert (reply.stop_reason, len(reply.log_probs)) == ("stop", len(reply.token_ids))
    assert reply.extra_fields["versions"] == [[len(first), 1], [2, 8], [1, 9]]
    # If the whole stop string is in the rest, the engine itself ends the reply.
    reply, _ = scripted((first, "aborted"), (rest, "completed"), name=name, params={"stop": "more"})
    assert tokenizer.decode(reply.token_ids) == "so it is <end> and more"


def test_equal_versions_are_joined_counts_of_the_parts_add_up_and_the_cached_prefix_is_the_first_ones():
    draft = "spec_num_draft_tokens"
    reply, _ = scripted(
        ([1, 2, 3], "aborted", {"versions": [[1, 4], [2, 5]], draft: 3, "num_cached_tokens": 2}),
        ([4], "stop", {"versions": [[1, 5]], draft: 4, "num_cached_tokens": 9}),
    )
    fields = reply.extra_fields
    assert (fields["versions"], fields[draft], fields["num_cached_tokens"]) == ([[1, 4], [3, 5]], 7, 2)


def test_routed_experts_are_those_of_the_weights_that_sampled_the_tokens():
    def part(tokens, rows, value):
        return TokenOutput(token_ids=tokens, routed_experts=np.full((rows, 1), value))

    # The prompt has two tokens. The last token of a request has no routed experts.
    parts = [part([1, 2], 3, 1), part([], 3, 7), part([3, 4, 5], 6, 2)]
    reply = ResumedReply([8, 9], {}, OmegaConf.create(ROLLOUT), str, [1, 2, 3, 4, 5], parts)
    assert reply.joined().routed_experts[:, 0].tolist() == [1, 1, 1, 2, 2, 2]
    keep(cut := part([3, 4, 5], 6, 2), 1, before=4)
    assert (cut.token_ids, len(cut.routed_experts)) == ([3], 5)


async def test_a_request_waits_at_a_closed_gate_and_is_not_sent_after_a_cancellation():
    script = Script(([1], "completed"), ([2], "completed"))
    script.client = client = client_of(script)
    client.gate.close()
    waiting, cancelled = ask(client), ask(client)
    await asyncio.sleep(0.01)
    assert script.requests == []
    cancelled.cancel()
    client.gate.open()
    await asyncio.wait([waiting, cancelled])
    assert (cancelled.cancelled(), len(script.requests)) == (True, 1)
