"""Memory of a training process, computed by hand for a model of round numbers."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_model import MODEL, POLICY, SEEING, N
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from verl_mas.planning.path import FUSED, TrainingPath
from verl_mas.planning.training import (
    at_rest,
    gathered,
    host,
    load_host,
    log_probs,
    scored,
    update,
    updated,
)
from verl_mas.planning.training import checkpoint as size_on_disk

AWAY = {"param_offload": True, "optimizer_offload": True}
FEW = {"model": replace(MODEL, vocabulary=100)}  # logits of few entries
FUSED_PATH = {"path": TrainingPath(log_probs=FUSED), "update_tokens": 2000, "log_prob_tokens": 100}
MASKED = {"path": TrainingPath("sdpa")}
LAYER = 8 * 64 + 3 * 128  # elements per token that a layer computes
ON_A_BASE = {"element": 2, "adapters": (8000, 4000)}
QUARTER = {"model": SEEING, "images": 0.25}  # a quarter of the tokens are of images, each of four patches
PATCH = 2 * (8 * 32 + 3 * 16)
SHARD = 65_536 + 4 * 16_384  # of 64,000 and 9,000 bytes, each rounded up


@pytest.mark.parametrize(
    ("moment", "settings", "terms"),
    [
        (at_rest, {}, {"parameters": 4 * N / 4, "Adam": 8 * N / 4}),
        (partial(at_rest, begun=False), {}, {"Adam": 0}),  # the first step makes Adam's state
        (at_rest, AWAY, {"parameters": 0, "Adam": 0}),
        # 16 bytes per parameter, and logits of the longest micro batch.
        (update, AWAY, {"parameters": N, "gradients": N, "Adam": 2 * N, "logits": 4 * 256 * 1000}),
        (update, {}, {"activations": 2 * 4 * 256 * 64}),
        # The larger of two moments counts. Here it is when a layer is computed again, after the logits are dropped.
        (updated, FEW, {"logits": 0, "activations": 2 * 4 * 256 * 64 + 2 * 256 * LAYER}),
        # An update needs 22 bytes, and scoring 14, for each of 1,000 entries of 512 tokens (or of all, if fewer).
        (updated, FUSED_PATH, {"logits": 22 * 512 * 1000}),
        (scored, FUSED_PATH, {"logits": 14 * 100 * 1000}),
        (update, {"checkpointing": False}, {"activations": 4 * 2 * 256 * LAYER}),
        (update, {"shards": 1, "update_tokens": 1}, {"Adam's step": 4 * N}),
        # FSDP keeps the gradients whole until the last micro batch.
        (update, {"sync_once": True}, {"gradients": 4 * N / 4 + 4 * N}),
        (update, {"always_on_cpu": True}, {"parameters": 0, "gradients": 0, "Adam": 0}),
        (update, {"adapter": 8000}, {"parameters": N, "gradients": 8000, "Adam": 2 * 8000}),
        (log_probs, AWAY, {"parameters": N, "Adam": 0, "logits": 2 * 512 * 1000}),
        (log_probs, {"reshard": False}, {"gathered layers": 2 * N}),
        (log_probs, MASKED, {"attention mask": (1 + 2 + 2) * 512**2}),
        (update, MASKED, {"attention mask": (1 + 2 + 2) * 256**2}),
        (update, {**MASKED, "checkpointing": False}, {"attention mask": (1 + 2 * (4 + 1)) * 256**2}),
        (update, {}, {"attention mask": 0}),
        # Adapters on a base are in float32 and trained in turn. Their Adam stays on the GPU.
        (
            at_rest,
            {**ON_A_BASE, "optimizer_offload": True},
            {"parameters": (2 * N + 48_000) / 4, "Adam": 8 * 12_000 / 4},
        ),
        (update, ON_A_BASE, {"gradients": 4 * 8000 / 4}),
        (scored, QUARTER, {"images": 128 * 100 + 512 * PATCH}),
        (updated, QUARTER, {"images": 64 * 100 + 256 * (2 * 2 * 32 + PATCH)}),
        (updated, {**QUARTER, "checkpointing": False}, {"images": 64 * 100 + 256 * 2 * PATCH}),
        (updated, {"model": SEEING, "images": 0.0}, {"images": 0}),
        (partial(host, gpus=4), AWAY, {"parameters": 4 * SHARD, "Adam": 2 * 4 * SHARD, "reference": 0}),
    ],
)
def test_a_moment_of_the_training_has_these_bytes(moment, settings, terms):
    found = moment(replace(POLICY, **settings))
    assert {name: found[name] for name in terms} == terms


def test_a_term_that_is_not_there_is_left_out():
    assert at_rest(replace(POLICY, trains=False)) == {}
    assert "logits" not in scored(replace(POLICY, **FEW))
    assert "logits" not in update(replace(POLICY, shards=1, update_tokens=1))


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


def test_the_gradient_of_the_head_is_whole_until_it_is_divided():
    forward, both = (step(POLICY)["gathered layers"] for step in (log_probs, update))
    assert both - forward == 2 * 64_000
    assert update(replace(POLICY, adapter=8000))["gathered layers"] == forward
    # 2,000 elements join the tower to the text model. The layers of the text model are smaller than those of MODEL,
    # because 10,000 of the parameters are in the tower.
    assert gathered(replace(POLICY, model=SEEING)) == 2 * (64_000 + 2_000 + 2 * (N - 10_000 - 64_000) // 4)


def test_every_rank_reads_all_of_a_tied_model():
    assert load_host(POLICY, 4) == 4 * 4 * N
    assert load_host(replace(POLICY, model=replace(MODEL, tied=False)), 4) == 4 * N


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, 12 * N),
        ({"saved": {"model"}}, 4 * N),
        ({"saved": {"hf_model"}}, 2 * N),
        ({"adapter": 8000}, 4 * N + 8 * 8000),
        (ON_A_BASE, 12 * 12_000),  # without the base
        ({"critic": POLICY}, 2 * 12 * N),
    ],
)
def test_a_checkpoint_has_what_is_saved(settings, size):
    assert size_on_disk(replace(POLICY, **settings)) == size


def test_a_critic_beside_a_policy_is_a_second_model_without_logits():
    """Computed by hand: for each of the two models, 4 N bytes of parameters and 8 N bytes of Adam's state stay on the
    GPUs. Only one model computes at a time."""
    own = replace(POLICY, update_tokens=2048, log_prob_tokens=2048, logits=0, logits_update=0)
    both = replace(POLICY, critic=own)
    assert at_rest(both)["critic"] == (4 + 8) * N / 4
    assert update(both) == {**update(own), "policy": (4 + 8) * N / 4}, "its longer micro batches take more"
    short = replace(both, critic=replace(own, update_tokens=1))
    assert update(short) == {**update(POLICY), "critic": (4 + 8) * N / 4}
    away = replace(both, critic=replace(own, **AWAY))
    assert at_rest(away)["critic"] == 0 and host(away, 4)["critic"] >= 12 * N
