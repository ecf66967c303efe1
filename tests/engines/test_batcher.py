import random
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from verl_mas.engines.transformers.batcher import Capacity, ContinuousBatcher
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import OneDnnLinear, use_onednn
from verl_mas.errors import ConfigError, EngineLost, RequestError


def run(batcher):
    while not batcher.idle:
        batcher.step()


def serve(batcher, prompt, n=1, seed=None, **sampling):
    """`n` requests with one prompt, each with a seed of its own."""
    seeds = [seed if seed is None else f"{seed} {number}" for number in range(n)]
    samples = [batcher.submit(prompt, RequestSampling(seed=own, **sampling)) for own in seeds]
    run(batcher)
    return samples


def trained_log_probs(model, prompt, tokens, temperature=1.0):
    """Compute log-probs like the trainer, with one forward over prompt and reply."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def greedy_one_by_one(model, prompt, count):
    tokens = []
    with torch.no_grad():
        for _ in range(count):
            tokens.append(model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].argmax().item())
    return tokens


def random_prompt(chance, longest=40):
    return [chance.randrange(3, 259) for _ in range(chance.randrange(1, longest))]


def test_mixed_requests_get_the_replies_that_each_would_get_alone(model, make_batcher):
    chance = random.Random(0)
    common = [chance.randrange(3, 259) for _ in range(20)]
    batcher = make_batcher(capacity=Capacity(cache_bytes=1 << 20, prefill_tokens=64))
    jobs = []
    for number in range(32):
        sampling = RequestSampling(
            max_tokens=chance.randrange(1, 12),
            temperature=chance.choice([0, 0.7, 1]),
            top_k=chance.choice([-1, 5]),
            top_p=chance.choice([1, 0.9]),
            seed=number,
        )
        # Most prompts begin like other prompts, some of which are running.
        prompt = [*common[: chance.randrange(20)], *random_prompt(chance, longest=20)]
        jobs.append((prompt, sampling, batcher.submit(prompt, sampling)))
        if chance.random() < 0.3:  # some requests join while others run
            batcher.step()
    run(batcher)
    for prompt, sampling, together in jobs:
        if sampling.greedy:
            assert together.tokens == greedy_one_by_one(model, prompt, len(together.tokens))
        solo = make_batcher()
        expected = solo.submit(prompt, sampling)
        run(solo)
        assert together.tokens == expected.tokens
        torch.testing.assert_close(together.log_probs, expected.log_probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [0, 0.5, 1, 1.7])
def test_log_probs_are_the_trainers(model, make_batcher, temperature):
    prompt = list(range(10, 40))
    for sequence in serve(make_batcher(), prompt, max_tokens=50, temperature=temperature, n=3):
        expected = trained_log_probs(model, prompt, sequence.tokens, temperature or 1)
        torch.testing.assert_close(torch.tensor(sequence.log_probs), expected, rtol=0, atol=1e-5)


def test_samples_follow_the_distribution_that_their_log_probs_claim(model, make_batcher):
    prompt, n = [7, 8, 9], 4000
    batcher = make_batcher(capacity=Capacity(rows=n))
    sequences = serve(batcher, prompt, max_tokens=1, temperature=0.3, top_k=6, n=n, seed=1)
    counts = Counter(sequence.tokens[0] for sequence in sequences)
    claimed = {sequence.tokens[0]: sequence.log_probs[0] for sequence in sequences}
    assert len(claimed) == 6
    assert sum(torch.tensor(list(claimed.values())).exp()) == pytest.approx(1, abs=1e-5)
    for token, log_prob in claimed.items():
        share = torch.tensor(log_prob).exp().item()
        assert counts[token] / n == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5)


def test_top_p_keeps_only_the_nucleus(model, make_batcher):
    with torch.no_grad():
        probabilities = torch.softmax(model(torch.tensor([[7, 8, 9]])).logits[0, -1], dim=-1)
    order = probabilities.argsort(descending=True)
    nucleus = order[: int((probabilities[order].cumsum(0) < 0.1).sum()) + 1].tolist()
    sequences = serve(make_batcher(), [7, 8, 9], max_tokens=1, top_p=0.1, n=300, seed=0)
    assert {sequence.tokens[0] for sequence in sequences} == set(nucleus)


def test_requests_without_a_seed_differ_from_each_other(make_batcher):
    batcher = make_batcher()
    assert len({tuple(serve(batcher, [5, 6], max_tokens=20)[0].tokens) for _ in range(5)}) == 5


def test_all_that_a_step_computes_with_is_on_the_models_device(model):
    """The model is on torch's device without data, which refuses sums with tensors of another device."""
    fed = set()
    model.to("meta").register_forward_pre_hook(lambda _, args, named: fed.update(named.values()), with_kwargs=True)
    batcher = ContinuousBatcher(model, max_length=128, decode=str)
    batcher.submit([5, 6, 7], RequestSampling(max_tokens=9, repetition_penalty=1.2))
    batcher.submit([5], RequestSampling(max_tokens=9, temperature=0.7, top_k=5, top_p=0.9))
    batcher.submit([5, 6], RequestSampling(max_tokens=9, temperature=0))
    with pytest.raises(RuntimeError, match="meta"):
        batcher.step()  # fails when it reads the first value, after the logits are processed
    assert {value.device.type for value in fed if isinstance(value, torch.Tensor)} == {"meta"}


@pytest.fixture
def computed(model, monkeypatch):
    """List the rows and columns of the input of each forward pass."""
    shapes, forward = [], model.base_model.forward
    monkeypatch.setattr(
        model.base_model, "forward", lambda *a, **k: (shapes.append(tuple(k["input_ids"].shape)), forward(*a, **k))[1]
    )
    return shapes


def test_what_a_running_row_has_of_a_prompt_is_not_computed_again(make_batcher, computed):
    first = list(range(5, 35))
    prompts = [[*first[:10], *range(50, 55)], [*first[:20], 60, 61], first]
    alone = [serve(make_batcher(), prompt, max_tokens=6, temperature=0)[0] for prompt in prompts]
    batcher = make_batcher()
    batcher.submit(first, RequestSampling(max_tokens=9))
    batcher.step()
    computed.clear()
    together = [batcher.submit(prompt, RequestSampling(max_tokens=6, temperature=0)) for prompt in prompts]
    run(batcher)
    assert computed[0] == (3, 4)  # four of the first's last five, one of the second's, none of the third's
    for one, other in zip(together, alone, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(one.log_probs, other.log_probs, rtol=0, atol=1e-5)


def test_one_prompt_that_shares_much_and_one_that_shares_nothing_fit_the_cache_together(make_batcher):
    chance = random.Random(1)
    first, other = ([chance.randrange(3, 259) for _ in range(60)] for _ in range(2))
    batcher = make_batcher()
    batcher.submit(first, RequestSampling(max_tokens=4))  # 64 columns, the smallest size of the cache
    batcher.step()
    asked = [batcher.submit(prompt, RequestSampling(max_tokens=4, temperature=0)) for prompt in (first, other)]
    run(batcher)
    for prompt, sample in zip((first, other), asked, strict=True):
        assert sample.tokens == serve(make_batcher(), prompt, max_tokens=4, temperature=0)[0].tokens


def test_keys_and_values_of_earlier_weights_are_not_shared(make_batcher, computed):
    batcher = make_batcher()
    before = batcher.submit([5, 6, 7, 8], RequestSampling(max_tokens=9))
    batcher.step()
    before.versions.append((1, 0))  # the server does this when weights change
    batcher.submit([5, 6, 7, 9], RequestSampling(max_tokens=1))
    run(batcher)
    assert (1, 3) in computed[2:]


def test_a_stop_token_a_stop_string_over_tokens_and_the_end_token_end_a_reply(make_batcher):
    batcher = make_batcher(decode=lambda tokens: "".join(chr(97 + token % 26) for token in tokens))
    settings = {"max_tokens": 20, "seed": 3}
    [free] = serve(batcher, [5, 6], **settings)
    text, token = batcher.decode(free.tokens), free.tokens[4]
    first, ends = free.tokens.index(token) + 1, make_batcher(eos=[token])
    for end, stopped in (
        (first, serve(batcher, [5, 6], stop_token_ids=(token,), **settings)),
        (text.index(text[7:10]) + 3, serve(batcher, [5, 6], stop=(text[7:10], "never"), **settings)),
        (first, serve(ends, [5, 6], **settings)),
    ):
        assert [(sample.tokens, sample.finish_reason) for sample in stopped] == [(free.tokens[:end], "stop")]
    assert serve(ends, [5, 6], ignore_eos=True, **settings)[0].tokens == free.tokens and free.finish_reason == "length"


def test_a_repetition_penalty_is_the_librarys(model, make_batcher):
    [sequence] = serve(make_batcher(), [5, 6, 7], max_tokens=12, temperature=0, repetition_penalty=1.5)
    output = model.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, repetition_penalty=1.5, eos_token_id=None
    )
    assert sequence.tokens == output[0, 3:].tolist()


@pytest.mark.parametrize(
    ("prompt", "refusal"),
    [([5] * 510, "a prompt of 510 tokens"), ([], "empty"), ([5, 259], "token ids"), ([-1], "token ids")],
)
def test_a_prompt_that_cannot_be_served_fails_alone(make_batcher, prompt, refusal):
    batcher = make_batcher()
    neighbour = batcher.submit([5, 6], RequestSampling(max_tokens=5))
    with pytest.raises(RequestError, match=refusal):
        batcher.submit(prompt, RequestSampling(max_tokens=5))
    run(batcher)
    assert neighbour.finish_reason


def test_the_cache_budget_makes_requests_wait_and_never_fail(make_batcher):
    batcher = make_batcher(capacity=Capacity(cache_bytes=1))
    jobs = [batcher.submit([5, 6], RequestSampling(max_tokens=4)) for _ in range(3)]
    steps = 0
    while not batcher.idle:
        batcher.step()
        steps += 1
    assert steps == 12 and all(job.finish_reason for job in jobs)


def test_broken_weights_stop_the_engine_instead_of_giving_text(model, make_batcher):
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(EngineLost, match="not a number"):
        serve(make_batcher(), [5, 6], max_tokens=3)


def test_a_row_whose_scores_are_no_numbers_fails_alone(make_batcher):
    batcher = make_batcher()
    failed = batcher.submit([5, 6], RequestSampling(4, repetition_penalty=1e-45))
    other = batcher.submit([5, 6], RequestSampling(4, ignore_eos=True))
    run(batcher)
    assert (failed.finish_reason, other.finish_reason, len(other.tokens)) == ("failed", "length", 4)
    (alone,) = serve(batcher, [5, 6], max_tokens=4, repetition_penalty=1e-45)
    assert alone.finish_reason == "failed"


@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
def test_other_architectures_are_served(config):
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    torch.manual_seed(0)
    shape = config(vocab_size=100, num_key_value_heads=2, max_position_embeddings=64, head_dim=8, **sizes)
    model = AutoModelForCausalLM.from_config(shape).eval()
    batcher = ContinuousBatcher(model, max_length=64, decode=str)
    jobs = [
        (p, batcher.submit(p, RequestSampling(max_tokens=8, temperature=0))) for p in ([4], [5, 6, 7], list(range(20)))
    ]
    run(batcher)
    for prompt, job in jobs:
        assert job.tokens == greedy_one_by_one(model, prompt, 8)


def test_more_positions_than_the_model_has_and_sliding_windows_below_them_are_refused(model):
    with pytest.raises(ConfigError, match="max_model_len=5000"):
        ContinuousBatcher(model, max_length=5000, decode=str)
    config = MistralConfig(
        vocab_size=10, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, sliding_window=16, max_position_embeddings=64,
    )  # fmt: skip
    sliding = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match="sliding"):
        ContinuousBatcher(sliding, max_length=32, decode=str)
    ContinuousBatcher(sliding, max_length=16, decode=str)


def test_onednn_changes_neither_weights_nor_log_probs(monkeypatch, model, make_batcher):
    monkeypatch.setattr("verl_mas.engines.transformers.server.WORTH_IT", 0)
    prompt = list(range(10, 40))
    expected = serve(make_batcher(), prompt, max_tokens=20, seed=0)[0]
    use_onednn(model)
    assert any(isinstance(module, OneDnnLinear) for module in model.modules())
    actual = serve(make_batcher(), prompt, max_tokens=20, seed=0)[0]
    assert actual.tokens == expected.tokens
    torch.testing.assert_close(actual.log_probs, expected.log_probs, rtol=0, atol=1e-5)


def test_requests_that_were_aborted_and_come_again_go_before_those_that_never_ran(make_batcher):
    batcher = make_batcher(capacity=Capacity(rows=1))
    settings = RequestSampling(max_tokens=2, ignore_eos=True)
    first = batcher.submit([5, 6], settings)
    batcher.step()
    fresh = batcher.submit([5, 7], settings)
    again = [batcher.submit([5, 8, token], settings, drawn=1) for token in (9, 10)]
    ended = []
    while not batcher.idle:
        ended += batcher.step()
    assert ended == [first, *again, fresh]


def test_an_abort_takes_requests_from_every_queue_with_their_tokens_and_the_engine_continues(make_batcher):
    batcher = make_batcher(capacity=Capacity(rows=1))
    settings = RequestSampling(max_tokens=9, ignore_eos=True)
    samples = [batcher.submit([5, 6, 7], settings, drawn=drawn) for drawn in (0, 2, 0)]
    assert batcher.abort([samples[1]]) == [samples[1]]
    batcher.step()
    assert set(batcher.abort()) == {samples[0], samples[2]} and batcher.idle
    assert [len(sample.tokens) for sample in samples] == [1, 0, 0]
    assert {sample.finish_reason for sample in samples} == {"aborted"}
    assert len(serve(batcher, [5, 6], max_tokens=3)[0].tokens) == 3


def test_a_stop_string_may_begin_in_the_tokens_that_were_drawn_before(model, make_batcher):
    text = greedy_one_by_one(model, [5, 6], 9)
    ends = make_batcher().decode(text[3:5])
    settings = RequestSampling(max_tokens=9, temperature=0, ignore_eos=True, stop=(ends,))
    ended = {}
    for drawn in (0, 4):
        batcher = make_batcher()
        sample = batcher.submit([5, 6, *text[:4]], settings, drawn=drawn)
        run(batcher)
        ended[drawn] = len(sample.tokens)
    assert ended[4] == 1 < ended[0]


def test_verls_sampling_parameters_are_read_and_none_means_the_default():
    sampling = RequestSampling.parse(
        dict(temperature=0.5, top_p=0.9, top_k=-1, repetition_penalty=1.0, max_tokens=4, stop="x", stop_token_ids=[7])
    )
    assert sampling == RequestSampling(max_tokens=4, temperature=0.5, top_p=0.9, stop=("x",), stop_token_ids=(7,))
    assert RequestSampling.parse(dict(max_tokens=4, stop=None, seed=None, top_k=None)) == RequestSampling(max_tokens=4)
