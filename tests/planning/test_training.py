"""Memory of a training process, computed by hand for a model of round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_model import MODEL, POLICY, SEEING, N
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from verl_mas.planning import training
from verl_mas.planning.path import FUSED, TrainingPath


def test_parameters_and_adam_stay_unless_they_are_offloaded():
    held = training.at_rest(POLICY)
    assert (held["parameters"], held["Adam"]) == (4 * N / 4, 8 * N / 4)
    before = training.at_rest(POLICY, begun=False)
    assert before["Adam"] == 0  # made by the first step
    offloaded = training.at_rest(replace(POLICY, param_offload=True, optimizer_offload=True))
    assert (offloaded["parameters"], offloaded["Adam"]) == (0, 0)
    assert training.at_rest(replace(POLICY, trains=False)) == {}


def test_an_update_loads_16_bytes_per_parameter_and_has_logits_of_its_longest_micro_batch():
    held = training.update(replace(POLICY, param_offload=True, optimizer_offload=True))
    assert held["parameters"] + held["gradients"] + held["Adam"] == 16 * N / 4
    assert held["logits"] == 4 * 256 * 1000
    assert held["activations"] == 2 * 4 * 256 * 64


def test_a_layer_is_computed_again_after_the_logits_are_dropped():
    """By hand: the larger of the two counts, here what a layer computes for logits of few entries."""
    few = replace(POLICY, model=replace(MODEL, vocabulary=100))
    held, again = training.updated(few), 2 * 256 * (8 * 64 + 3 * 128)
    assert (held["logits"], held["activations"]) == (0, 2 * 4 * 256 * 64 + again)
    assert "logits" not in training.scored(few)


def test_autograd_drops_the_logits_of_verls_log_probs_before_a_layer_is_computed_again():
    from verl.utils.torch_functional import logprobs_from_logits

    dropped, logits = [], []

    def layer(hidden):
        dropped.extend(storage.expired() for storage in logits)
        return hidden * hidden

    hidden, head = torch.ones(1, 4, 8, requires_grad=True), torch.nn.Linear(8, 16)

    def forward():
        scores = head(checkpoint(layer, hidden, use_reentrant=False))
        logits.append(StorageWeakRef(scores.untyped_storage()))
        return logprobs_from_logits(scores, torch.zeros(1, 4, dtype=torch.long)).sum()

    loss = forward()
    assert not logits[0].expired()
    loss.backward()
    assert dropped == [True]


def test_fused_kernels_have_the_logits_of_512_tokens_in_float32():
    """By hand: 14 and 22 bytes for each of 512 tokens and 1,000 entries, or of all tokens where there are fewer."""
    fused = replace(POLICY, path=TrainingPath(log_probs=FUSED), update_tokens=2000, log_prob_tokens=100)
    assert training.updated(fused)["logits"] == 22 * 512 * 1000
    assert training.scored(fused)["logits"] == 14 * 100 * 1000


def test_without_checkpointing_every_layer_keeps_its_activations():
    held = training.update(replace(POLICY, checkpointing=False))
    assert held["activations"] == 4 * 2 * 256 * (8 * 64 + 3 * 128)


def test_with_few_tokens_the_worst_moment_is_the_optimisers_step():
    held = training.update(replace(POLICY, shards=1, update_tokens=1))
    assert held["Adam's step"] == 4 * N and "logits" not in held
    # The step of one whose gradients FSDP keeps whole until the last micro batch, and of one on the CPU.
    assert training.update(replace(POLICY, sync_once=True))["gradients"] == 4 * N / 4 + 4 * N
    held = training.update(replace(POLICY, always_on_cpu=True))
    assert held["parameters"] == held["gradients"] == held["Adam"] == 0


def test_a_lora_adapter_has_gradients_and_adam_of_its_own_size_only():
    adapter = replace(POLICY, adapter=8000)
    held = training.update(adapter)
    assert held["parameters"] == 4 * N / 4
    assert (held["gradients"], held["Adam"]) == (4 * 8000 / 4, 8 * 8000 / 4)
    assert training.checkpoint(adapter) == 4 * N + 8 * 8000


def test_log_probs_load_parameters_and_not_adam():
    held = training.log_probs(replace(POLICY, param_offload=True, optimizer_offload=True))
    assert (held["parameters"], held["Adam"]) == (4 * N / 4, 0)
    assert held["logits"] == 2 * 512 * 1000
    assert training.log_probs(replace(POLICY, reshard=False))["gathered layers"] == 2 * N


def test_without_flash_attn_packed_rows_have_a_mask_of_all_pairs_of_their_tokens():
    masked = replace(POLICY, path=TrainingPath("sdpa"))
    assert training.log_probs(masked)["attention mask"] == (1 + 2 + 2) * 512**2
    assert training.update(masked)["attention mask"] == (1 + 2 + 2) * 256**2
    every_layer = training.update(replace(masked, checkpointing=False))
    assert every_layer["attention mask"] == (1 + 2 * (4 + 1)) * 256**2
    assert training.update(POLICY)["attention mask"] == 0


def test_the_gradient_of_the_head_is_whole_until_it_is_divided():
    forward, both = (step(POLICY)["gathered layers"] for step in (training.log_probs, training.update))
    assert both - forward == 2 * 64_000
    assert training.update(replace(POLICY, adapter=8000))["gathered layers"] == forward


def test_every_rank_reads_all_of_a_tied_model():
    assert training.load_host(POLICY, 4) == 4 * 4 * N
    assert training.load_host(replace(POLICY, model=replace(MODEL, tied=False)), 4) == 4 * N


def test_offloaded_tensors_are_pinned_and_each_rounded_up():
    held = training.host(replace(POLICY, param_offload=True, optimizer_offload=True), gpus=4)
    shard = (65_536, *(16_384,) * 4)  # of 64,000 and 9,000 bytes
    assert held["parameters"] == 4 * sum(shard)
    assert held["Adam"] == 2 * held["parameters"]
    assert held["reference"] == 0


@pytest.mark.parametrize(
    ("saved", "per_parameter"), [(("model", "optimizer", "extra"), 12), (("model",), 4), (("hf_model",), 2)]
)
def test_a_checkpoint_has_what_is_saved(saved, per_parameter):
    assert training.checkpoint(replace(POLICY, saved=frozenset(saved))) == per_parameter * N


ON_A_BASE = replace(POLICY, element=2, adapters=(8000, 4000))


def test_adapters_on_a_base_are_in_float32_and_trained_in_turn():
    held = training.at_rest(replace(ON_A_BASE, optimizer_offload=True))
    assert held["parameters"] == (2 * N + 4 * (8 + 4) * 1000) / 4
    # Adam of adapters stays on the GPU, and a checkpoint has them and not the base.
    assert held["Adam"] == 8 * (8 + 4) * 1000 / 4
    assert training.update(ON_A_BASE)["gradients"] == 4 * 8 * 1000 / 4
    assert training.checkpoint(ON_A_BASE) == 12 * (8 + 4) * 1000


def test_images_have_pixels_and_what_the_towers_layers_keep():
    """By hand: a quarter of the tokens are of images, each of four patches."""
    quarter = replace(POLICY, model=SEEING, images=0.25)
    layer = 2 * (8 * 32 + 3 * 16)
    assert training.scored(quarter)["images"] == 128 * 100 + 512 * layer
    assert training.updated(quarter)["images"] == 64 * 100 + 256 * (2 * 2 * 32 + layer)
    without = replace(quarter, checkpointing=False)
    assert training.updated(without)["images"] == 64 * 100 + 256 * 2 * layer
    assert (
        training.updated(replace(quarter, images=0.0))["images"]
        == training.updated(replace(quarter, model=MODEL))["images"]
        == 0
    )


def test_what_joins_a_tower_to_the_text_model_is_whole_while_it_computes():
    """2,000 elements are in none of its layers. A layer of the text model has fewer, as the tower has a part."""
    assert training.gathered(replace(POLICY, model=SEEING)) == 2 * (64_000 + 2_000 + 2 * (N - 10_000 - 64_000) // 4)


def test_a_critic_beside_a_policy_is_a_second_model_without_logits():
    """By hand: 4 N of parameters and 8 N of Adam stay on the GPUs for each, and one of both computes at a time."""
    own = replace(POLICY, update_tokens=2048, log_prob_tokens=2048, logits=0, logits_update=0)
    both = replace(POLICY, critic=own)
    assert training.at_rest(both)["critic"] == (4 + 8) * N / 4
    alone, critics = (training.update(load) for load in (POLICY, own))
    of_critic = training.update(both)
    assert of_critic == {**critics, "policy": (4 + 8) * N / 4}, "its longer micro batches take more"
    short = replace(both, critic=replace(own, update_tokens=1))
    assert training.update(short) == {**alone, "critic": (4 + 8) * N / 4}
    assert training.checkpoint(both) == 2 * training.checkpoint(POLICY) == 2 * 12 * N
    away = replace(both, critic=replace(own, param_offload=True, optimizer_offload=True))
    assert training.at_rest(away)["critic"] == 0 and training.host(away, 4)["critic"] >= 12 * N
