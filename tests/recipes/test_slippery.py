"""Slippery Plan-Path: the arms of its page, and real steps in which candidates are played on."""

from __future__ import annotations

import pytest

from verl_mas import read_sessions
from verl_mas.checks.team import validate
from verl_mas.cli import data
from verl_mas.config.compose import compose
from verl_mas.workflow.base import resolve

RECIPE = ("+platform=cpu", "+recipe=slippery/laptop")
SESSIONS = (
    "mas.workflow.args.continuations=0",
    "mas.branch.k=1",
    "actor_rollout_ref.rollout.n=8",
    "mas.advantage=null",
)
ARMS = {
    "branch and continuation": (),
    "branch": ("mas.workflow.args.continuations=0",),
    "sessions": (*SESSIONS, "algorithm.adv_estimator=agent_grpo"),
    "GiGPO": (*SESSIONS, "algorithm.adv_estimator=agent_gigpo"),
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_arms_of_the_page_compose(arm):
    team = validate(compose([*RECIPE, *ARMS[arm]]))
    workflow = resolve(team.workflow)
    assert workflow.max_turns == 16 and team.branch.commit == "uniform"
    assert workflow.probes == (arm == "branch and continuation")
    assert workflow.sparse == (arm != "branch and continuation")


@pytest.mark.e2e
@pytest.mark.nightly
def test_candidates_are_played_on_in_real_steps(main_ppo, tmp_path):
    made = tmp_path / "slippery"
    size = ["--size", "size=4", "slip=0.2", "--practice", "min_distance=3", "--train-rows", "16", "--test-rows", "8"]
    brief = ["--args", "moves=1", "--warm-up", "steps=20", "batch=16", "lessons=500"]
    assert data.main(["puzzle", "plan_path", "--out", str(made), *size, "--noise", "0.6", *brief]) == 0
    done = main_ppo(
        tmp_path / "run",
        f"data.train_files={made}/train.parquet",
        f"data.val_files={made}/test.parquet",
        f"actor_rollout_ref.model.path={made}/model",
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "mas.workflow.args.max_turns=3",
        "trainer.total_training_steps=2",
        "trainer.test_freq=2",
        "trainer.save_freq=-1",
        recipe="slippery/laptop",
    )
    assert done.exit_code == 0, done.output[-6000:]
    first = done.steps[1]
    assert first["session/dropped"] == 0 and first["session/probe_acts"] > first["session/acts/mean"] * 2
    assert 0 < first["session/probe_tokens"] < first["session/generated_tokens"]
    # Candidates of one prompt: every group has four rows, and probes are no rows.
    assert first["agent/planner/group/one_prompt"] == first["agent/executor/group/one_prompt"] == 1
    assert first["agent/planner/acts"] + first["agent/executor/acts"] == first["session/acts/mean"] * 2
    assert "val-session/probe_acts" not in done.steps[2]
    folder = tmp_path / "run" / "checkpoints" / "trajectories"
    acts = [act for session in read_sessions(folder) for act in session["acts"]]
    probes = [act for act in acts if act["probe"]]
    assert probes and all(act["key"] is None for act in probes) and all(act["key"] for act in acts if not act["probe"])
