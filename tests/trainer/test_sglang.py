"""Two policies on verl's own SGLang server, adapter and replica, over a stub of SGLang 0.5.12 (tests/support)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STUB = Path(__file__).parents[1] / "support" / "stub_sglang"


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STUB), prepend=os.pathsep)


@pytest.mark.parametrize("serving", ["together", "phases"])
def test_engines_survive_hundreds_of_cancelled_acts_and_take_the_weights(train_team, tmp_path, monkeypatch, serving):
    """The stub's scheduler ends, as SGLang's does, when it has to sleep or to take weights while a request runs."""
    monkeypatch.setenv("STUB_SGLANG_STEP_S", "0.01")
    done = train_team(
        tmp_path / "run",
        "Hasty",
        "mas.policies={a:{overrides:{actor:{optim:{lr:1e-2}}}},b:{overrides:{actor:{optim:{lr:1e-3}}}}}",
        "mas.agents={writer:{policy:a},copier:{policy:b}}",
        f"+mas.pools.shared.serving={serving} actor_rollout_ref.rollout.name=sglang",
        "actor_rollout_ref.rollout.load_format=dummy actor_rollout_ref.rollout.free_cache_engine=true",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3 actor_rollout_ref.actor.entropy_coeff=0.1",
        "data.max_response_length=32 trainer.total_training_steps=3",
    )
    assert len(done.steps) == 3, "288 acts were cancelled"
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == 0
        for policy in ("a", "b"):
            assert metrics[f"policy/{policy}/rows/real"] == 16
            assert metrics[f"policy/{policy}/training/rollout_actor_probs_pearson_corr"] > 0.999


def test_adapters_and_their_bare_base_answer_from_one_engine_with_the_weights_that_they_train(adapters_on):
    adapters_on(
        "sglang",
        "actor_rollout_ref.rollout.free_cache_engine=true actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
    )
