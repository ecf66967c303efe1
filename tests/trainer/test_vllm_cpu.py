"""Teams on verl's own vLLM rollout, on the CPU. Needs the environment of `make vllm-cpu`; skipped elsewhere."""

import os
from pathlib import Path

import pytest
from verl_mas_vllm_cpu import readiness

from verl_mas.engines.kinds import vllm
from verl_mas.testing.tiny_model import tiny_model

RECORDER = Path(__file__).parents[1] / "support" / "sleep_recorder"
MISSING = readiness.readiness()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(MISSING), reason=f"{'; '.join(MISSING)}. {vllm.CPU_FIX}")]


@pytest.fixture(autouse=True)
def small_and_offline(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def model(tmp_path):
    """A model with heads of 64: vLLM's CPU attention does not support the smaller heads of the letters' model."""
    return f"actor_rollout_ref.model.path={tiny_model(tmp_path / 'model', hidden=128)}"


@pytest.fixture(params=[1, 2], ids=["whole", "tensor_parallel"])
def size(request):
    """Settings for engines of one or two vLLM workers, each next to a training worker."""
    return (
        f"trainer.n_gpus_per_node={request.param} actor_rollout_ref.rollout.tensor_model_parallel_size={request.param}"
    )


def test_trained_and_frozen_policies_sleep_and_wake_in_order_in_phases(train_team, tmp_path, model, size, monkeypatch):
    """The CPU build has no sleep mode, so a recorder replaces it and refuses calls that are out of order."""
    monkeypatch.setenv("PYTHONPATH", str(RECORDER), prepend=os.pathsep)
    done = train_team(
        tmp_path / "run",
        "Trio",
        model,
        size,
        "mas.policies={a:{},b:{},f:{trainable:false}}",
        "mas.agents={first:{policy:a},second:{policy:f},third:{policy:b}} +mas.pools.shared.serving=phases",
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.free_cache_engine=true",
        "actor_rollout_ref.rollout.max_model_len=192 actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "trainer.total_training_steps=2",
    )
    assert len(done.steps) == 2
    log = (tmp_path / "run/checkpoints/workers.log").read_text()
    assert ("(Worker_TP1 " in log) == size.endswith("=2"), "each engine has as many workers as it should"
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        for policy in ("a", "b"):
            assert metrics[f"policy/{policy}/training/rollout_probs_diff_max"] < 1e-4


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_engines_get_the_weights_of_their_own_policy(train_team, tmp_path, model, mode):
    """If names, ports or sockets were shared, one policy's weights would reach the other's engine. One policy learns a
    thousand times faster than the other, whose log-probs would be far from its trainer's with these weights. In the
    asynchronous modes rows are one update old."""
    done = train_team(
        tmp_path / "run",
        "Pair",
        model,
        f"+mas/mode={mode}",
        "mas.policies={a:{overrides:{actor:{optim:{lr:1e-2}}}},b:{overrides:{actor:{optim:{lr:1e-5}}}}}",
        "mas.agents={writer:{policy:a},copier:{policy:b}} actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.max_model_len=192 actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "actor_rollout_ref.actor.entropy_coeff=0.1 trainer.total_training_steps=3 mas.old_log_probs_every=1",
    )
    fast, slow = (
        [metrics[f"policy/{policy}/training/rollout_probs_diff_max"] for metrics in done.steps.values()]
        for policy in ("a", "b")
    )
    assert len(slow) == 3 and max(slow) < 1e-3
    assert fast[0] < 1e-4, "the first rows are of the weights that are trained"
    assert max(fast[1:]) < 1e-4 if mode == "sync" else max(fast[1:]) > 1e-3


def test_adapters_and_their_bare_base_answer_from_one_engine_with_the_weights_that_they_train(adapters_on, model, size):
    adapters_on(
        "vllm",
        model,
        size,
        "actor_rollout_ref.rollout.max_model_len=192 actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    )
