"""Errors that end a step of the trainer, outside Ray: failed sessions, updates that are not finite."""

from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer as verl_buffer

from verl_mas.config.schema import FaultSpec, FilterSpec, MasConfig
from verl_mas.errors import EngineLost, SessionsFailed, UpdateFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.trainer.filters import TaskFilter
from verl_mas.trainer.policies.policy_trainer import check_finite
from verl_mas.trainer.trainer import TeamTrainer

REASON = {"refused": "no such setting"}
REFUSED = SessionCounts(sessions=1, tasks=1, failed={"refused": 1}, faults={"refused": 1}, first_faults=REASON)
FINE = SessionCounts(sessions=1, tasks=1)


@pytest.fixture
def trainer(monkeypatch):
    """Make a trainer after a rollout: verl's replay buffer over four tasks without rows, and the counts of workers."""

    def make(*counts, limit=0.5, **refill):
        failed = {"is_prompt": True, "status": "failure", "global_steps": 1}
        tasks = {f"1-{i}": dict(failed) for i in range(4)}
        monkeypatch.setattr(verl_buffer, "tq", SimpleNamespace(kv_list=lambda: {"train": tasks}, kv_clear=Mock()))
        made = object.__new__(TeamTrainer)
        made.mas = MasConfig(faults=FaultSpec(max_dropped_share=limit))
        made.config = OmegaConf.create({"data": {"train_batch_size": 4}})
        made.global_steps, made._sessions = 1, SessionCounts()
        made.filter = TaskFilter(FilterSpec(), lambda rows: [])
        made.agent_loop_manager = Mock(**{"pop_counts.side_effect": chain(counts, repeat(SessionCounts()))})
        # Stands for verl's method, which replaces this number of tasks.
        made.added = Mock()
        monkeypatch.setattr(TeamTrainer.__bases__[0], "_add_prompts_to_generate", made.added)
        made.replay_buffer = verl_buffer.ReplayBuffer(
            "sync", {}, None, "drop", {}, poll_interval=0, refill_fn=made._add_prompts_to_generate, **refill
        )
        return made

    return make


def step(trainer):
    trainer._step_once({}, {}, 4)  # noqa: SLF001


@pytest.mark.parametrize("limit", [0.5, 1.0])
def test_a_step_without_rows_says_why_its_sessions_failed_instead_of_how_to_replace_them(trainer, limit):
    with pytest.raises(SessionsFailed, match="all 4 sessions of step 1 failed: 4 refused") as raised:
        step(trainer(sum([REFUSED] * 4, SessionCounts()), limit=limit))
    assert "no such setting" in str(raised.value)
    # Python does not print the exception of verl as its cause.
    assert raised.value.__suppress_context__ and "sync_refill" in str(raised.value.__context__)


def test_a_lost_engine_comes_before_its_sessions_and_without_failures_verls_error_stays(trainer):
    with pytest.raises(EngineLost):
        step(trainer(EngineLost("gone")))
    with pytest.raises(RuntimeError, match="no materializable"):
        step(trainer(sum([FINE] * 4, SessionCounts())))


def test_tasks_are_replaced_until_a_whole_batch_of_them_has_failed(trainer):
    made = trainer(REFUSED, REFUSED, REFUSED, REFUSED, sync_refill_failed_groups=True, gen_batch_size=1)
    with pytest.raises(SessionsFailed, match="all 4 sessions of step 1"):
        step(made)
    assert made.added.call_args_list == [call(4)] * 3, "the fourth time four tasks had failed"


@pytest.mark.parametrize(
    ("name", "value", "scaled"),
    [
        ("actor/loss", float("nan"), []),
        ("actor/grad_norm", float("inf"), ["critic"]),
        ("critic/grad_norm", float("inf"), ["actor"]),
    ],
)
def test_an_update_that_is_not_finite_ends_the_run_with_the_name_of_its_policy(name, value, scaled):
    with pytest.raises(UpdateFailed, match=rf"policy solver is not finite: {name}={value}"):
        check_finite("solver", {"actor/loss": 0.1, "actor/grad_norm": 1.0, name: value}, scaled)


@pytest.mark.parametrize(
    ("scaled", "norm", "more"),
    [([], 0.0, {}), (["actor"], 2.0, {"actor/overflow": 0.0}), (["actor"], float("inf"), {"actor/overflow": 1.0})],
)
def test_a_finite_update_is_not_changed_and_an_overflow_that_a_gradient_scaler_handles_is_counted(scaled, norm, more):
    metrics = {"actor/loss": 0.1, "actor/grad_norm": norm}
    check_finite("solver", metrics, scaled)
    assert metrics == {"actor/loss": 0.1, "actor/grad_norm": norm, **more}
