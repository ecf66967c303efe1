"""Rows of different adapters in one batch of the embedded engine, against PEFT's model of each adapter alone."""

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from verl_mas.config.adapters import Adapter
from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.lora import Adapters
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import use_onednn
from verl_mas.errors import EngineLost

TABLE = {
    "solver": Adapter("solver", rank=8, alpha=16, seed=1),
    "verifier": Adapter("verifier", rank=4, alpha=32, seed=2),
}
PROMPTS = ([7], [5, 6, 7], list(range(20, 50)))


@pytest.fixture
def trained(model_path):
    """PEFT's model of an adapter with weights as after training: B is not zero."""

    def trained(name, seed=None, **settings):
        one = TABLE[name]
        torch.manual_seed(one.seed if seed is None else seed)
        base = AutoModelForCausalLM.from_pretrained(model_path)
        config = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}
        peft = get_peft_model(base, LoraConfig(r=one.rank, lora_alpha=one.alpha, **config)).eval()
        with torch.no_grad():
            for key, weight in peft.named_parameters():
                if "lora_B" in key:
                    weight.normal_(std=0.3)
        return peft

    return trained


def tensors(peft):
    return get_peft_model_state_dict(peft, save_embedding_layers=False)


@pytest.fixture
def peers(model, trained):
    """Map each policy to PEFT's model of its adapter alone, and None to the bare base."""
    return {None: model, "solver": trained("solver"), "verifier": trained("verifier")}


@pytest.fixture
def batcher(model, peers):
    """A batcher on the base with both adapters."""
    adapters = Adapters(model, TABLE)
    for name in TABLE:
        adapters.update(name, tensors(peers[name]))
    return ContinuousBatcher(model, max_length=512, decode=str, adapters=adapters)


def run(batcher):
    while not batcher.idle:
        batcher.step()


@torch.no_grad()
def expected_log_probs(peer, prompt, tokens):
    """Compute log-probs like the trainer, with one forward over prompt and reply."""
    logits = peer(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("onednn", [False, True])
def test_every_row_of_a_mixed_batch_has_the_log_probs_of_its_adapter_alone(
    model, model_path, peers, batcher, onednn, monkeypatch
):
    if onednn:
        monkeypatch.setattr("verl_mas.engines.transformers.server.WORTH_IT", 0)
        use_onednn(model)
    peers[None] = AutoModelForCausalLM.from_pretrained(model_path)
    # The batch holds three rows, so that rows of other adapters take the places of rows that end.
    batcher.max_rows = 3
    asked = [(name, prompt) for prompt in PROMPTS for name in peers]
    jobs = [
        batcher.submit(prompt, RequestSampling(max_tokens=3 + i % 5), name) for i, (name, prompt) in enumerate(asked)
    ]
    run(batcher)
    for (name, prompt), sample in zip(asked, jobs, strict=True):
        for other, peer in peers.items():
            difference = expected_log_probs(peer, prompt, sample.tokens) - torch.tensor(sample.log_probs)
            assert (difference.abs().max() < 1e-5) == (other == name)


def test_a_row_without_adapter_has_exactly_the_output_of_the_base(model, batcher):
    """Both batches have the same shape, because the shape decides in which order torch adds."""
    ids = torch.tensor([PROMPTS[1]] * 3)
    with torch.inference_mode():
        batcher.adapters.aim([None] * 3)
        bare = model(ids).logits
        batcher.adapters.aim(["solver", None, "verifier"])
        mixed = model(ids).logits
    assert torch.equal(mixed[1], bare[1])
    assert not torch.isclose(mixed[0], bare[0], atol=1e-2).all()


def test_equal_prompts_share_a_prefill_only_within_an_adapter(model, batcher, monkeypatch):
    shapes, forward = [], model.base_model.forward
    monkeypatch.setattr(
        model.base_model, "forward", lambda *a, **k: (shapes.append(tuple(k["input_ids"].shape)), forward(*a, **k))[1]
    )
    for name in ("solver", "verifier", None, "verifier"):
        batcher.submit([5, 6, 7], RequestSampling(max_tokens=1), name)
    run(batcher)
    assert shapes == [(3, 2), (4, 1)]


def test_adapters_may_be_on_different_modules(model, model_path, peers, trained):
    peers[None] = AutoModelForCausalLM.from_pretrained(model_path)
    peers["solver"] = trained("solver", target_modules=["q_proj", "lm_head"])
    peers["verifier"] = trained("verifier", target_modules=["k_proj", "down_proj", "q_proj"])
    adapters = Adapters(model, TABLE)
    batcher = ContinuousBatcher(model, max_length=512, decode=str, adapters=adapters)
    for name in TABLE:
        adapters.update(name, tensors(peers[name]))
    jobs = {name: batcher.submit(PROMPTS[1], RequestSampling(max_tokens=5), name) for name in peers}
    run(batcher)
    for name, sample in jobs.items():
        expected = expected_log_probs(peers[name], PROMPTS[1], sample.tokens)
        torch.testing.assert_close(torch.tensor(sample.log_probs), expected, rtol=0, atol=1e-5)


def test_weights_that_are_not_the_adapters_are_refused_and_change_nothing(model, batcher, trained):
    before = [buffer.clone() for buffer in model.buffers()]
    right = tensors(trained("solver", seed=9))
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    less = {key: value for key, value in right.items() if key != first}
    for wrong, message in (
        (less, "the trainer sent other tensors than it has; see .*q_proj.lora_A.weight"),
        ({}, "the trainer sent other tensors than it has"),
        ({**right, first: right[first][:4]}, r"adapter solver of rank 8: .*q_proj.lora_A.weight \(4, "),
        ({**right, first.replace("q_proj", "x_proj"): right[first]}, "x_proj.lora_A.weight .* does not belong"),
        ({**right, first.replace("lora_A", "lora_embedding_A"): right[first]}, "serves LoRA on linear layers"),
    ):
        with pytest.raises(EngineLost, match=message):
            batcher.adapters.update("solver", wrong)
    assert all(torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True))


def test_adapters_move_with_the_model_and_are_not_in_its_state(model, batcher):
    assert not any("lora" in name for name in model.state_dict())
    model.to("meta")
    assert {buffer.device.type for name, buffer in model.named_buffers() if "lora" in name} == {"meta"}
