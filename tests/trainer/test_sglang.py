"""Two policies on verl's own SGLang server, adapter and replica, and SGLang's own scheduler, on the CPU.

Needs the environment of `make sglang-cpu`; skipped elsewhere. An assertion that fails in the scheduler ends the run.
"""

import pytest
from real_sglang import OPTIONS, needs_adapters, needs_sglang, use

from verl_mas.testing.tiny_model import tiny_model

pytestmark = [pytest.mark.e2e, needs_sglang]
SGLANG = (
    "actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.gpu_memory_utilization=0.3 "
    "actor_rollout_ref.rollout.free_cache_engine=true +actor_rollout_ref.rollout.engine_kwargs.sglang={"
    + ",".join(f"{name}:{value}" for name, value in OPTIONS.items())
    + "}"
)
# One policy learns a thousand times faster, so log-probs under its weights are far from the other's.
PAIR = (
    "mas.policies={a:{overrides:{actor:{optim:{lr:1e-2}}}},b:{overrides:{actor:{optim:{lr:1e-5}}}}}",
    "actor_rollout_ref.actor.entropy_coeff=0.1",
    SGLANG,
)
GAP = "policy/{}/training/rollout_probs_diff_max"


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    use(monkeypatch)


@pytest.fixture
def wide(tmp_path):
    """A model with an intermediate size of 256. SGLang on the CPU pads other sizes to a multiple of 32, but it does
    not pad adapters."""
    return f"actor_rollout_ref.model.path={tiny_model(tmp_path / 'model', hidden=64)}"


@pytest.mark.parametrize("serving", ["together", "phases"])
def test_engines_survive_cancelled_acts_and_sample_with_the_weights_that_were_sent(train_team, tmp_path, serving):
    """SGLang's scheduler ends when it has to sleep or to take weights while a request runs."""
    done = train_team(
        tmp_path / "run",
        "Hasty",
        *PAIR,
        "mas.agents={writer:{policy:a},copier:{policy:b}}",
        f"+mas.pools.shared.serving={serving} actor_rollout_ref.rollout.load_format=dummy",
        # Long enough that no act ends before it is cancelled.
        "data.max_prompt_length=320 data.max_response_length=128 trainer.total_training_steps=2",
        "mas.old_log_probs_every=1",
    )
    assert len(done.steps) == 2, "192 acts were cancelled"
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == 0
        for policy in ("a", "b"):
            assert metrics[f"policy/{policy}/rows/real"] == 16
            assert metrics[f"policy/{policy}/actor/grad_norm"] > 0
            assert metrics[GAP.format(policy)] < 1e-5


def test_requests_are_aborted_for_an_update_and_continue_with_the_new_weights(train_team, tmp_path):
    done = train_team(
        tmp_path / "run",
        "Late",
        *PAIR,
        "+mas/mode=colocate_async algorithm.adv_estimator=at_grpo mas.branch.k=2 mas.branch.commit=uniform",
        "mas.agents={writer:{policy:a},reader:{policy:b},copier:{policy:b}}",
        "data.max_response_length=48 trainer.total_training_steps=4",
    )
    steps = list(done.steps.values())
    assert len(steps) == 4 and all(metrics["session/dropped"] == 0 for metrics in steps)
    assert any(metrics.get("policy/a/staleness/continued", 0) > 0 for metrics in steps)
    for agent in ("writer", "copier"):
        distances = [metrics[key] for metrics in steps if (key := f"agent/{agent}/log_probs/max") in metrics]
        assert distances and max(distances) < 1e-4, "tokens of the weights that are trained"


@needs_adapters
def test_adapters_and_their_bare_base_answer_from_one_engine_with_the_weights_that_they_train(adapters_on, wide):
    adapters_on("sglang", SGLANG, wide)


@needs_adapters
def test_the_adapter_of_a_policy_with_a_base_of_its_own_reaches_its_engine(train_team, tmp_path, wide):
    """verl collects the adapter from FSDP1 and sends nothing else. If it were lost, log-probs would differ after the
    first update."""
    done = train_team(
        tmp_path / "run",
        "Pair",
        "++actor_rollout_ref.model.lora_rank=8 ++actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.actor.strategy=fsdp actor_rollout_ref.actor.optim.lr=1e-2",
        SGLANG,
        wide,
        "actor_rollout_ref.rollout.load_format=auto",
        "actor_rollout_ref.actor.entropy_coeff=0.1 trainer.total_training_steps=3 mas.old_log_probs_every=1",
    )
    assert len(done.steps) == 3
    for metrics in done.steps.values():
        assert metrics["actor/grad_norm"] > 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
