from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from benchmarks.evidence.floors import blind_bound
from verl_mas.checks import machine
from verl_mas.checks.run import validate
from verl_mas.config.adapters import adapters
from verl_mas.config.compose import compose
from verl_mas.config.hydra.recipe.guide_driver.team import boards_of, items
from verl_mas.config.run import Run
from verl_mas.util.splits import TEST


@pytest.fixture
def composed(evidence, monkeypatch):
    monkeypatch.setattr(machine, "available", lambda config: None)

    def of(arm, overrides=None):
        own = arm.overrides if overrides is None else overrides
        config = compose(["+platform=cpu", f"+mas={arm.workflow}", *arm.trial.settings, *own])
        GlobalHydra.instance().clear()
        return config, validate(config)

    return of


def test_every_kind_of_arm_composes_and_samples_the_same_number_of_replies(evidence, composed):
    task = evidence("tasks.plan_path")
    alike = (task.SPARSE_ARMS[0], task.SIZE_ARMS[0], task.UNEVEN_ARMS[-1], evidence("matrix").ARMS["planner_alone"])
    for arm in (*task.DENSE_ARMS, *alike):
        config, team = composed(arm)
        acts = 2 if arm.workflow == task.TEAM else 1
        each = team.branch.k * config.actor_rollout_ref.rollout.n
        assert config.data.train_batch_size * acts * each == 2 * task.BOARDS * task.K, arm.name
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.data.train_batch_size, arm.name
        assert team.branch.validation_k == 1, arm.name


def test_a_role_trained_alone_has_a_frozen_partner(evidence, composed):
    _, team = composed(evidence("matrix").ARMS["planner_alone"])
    assert {name: policy.trainable for name, policy in team.policies.items()} == {"planner": True, "executor": False}


def test_an_evaluation_composes_with_each_roles_own_weights(evidence, composed):
    models = {"planner": Path("/models/one"), "executor": Path("/models/two")}
    arm = evidence("matrix").ARMS["roles_kept"]
    config, team = composed(arm, evidence("runs").weights(arm.trial, models, Path("/start")))
    assert config.trainer.val_only
    for role, path in models.items():
        assert team.policies[team.agents[role].policy].overrides["model"]["path"] == str(path)


def test_the_matrix_holds_every_arm_once_a_seed_and_compares_arms_before_seeds(evidence):
    matrix = evidence("matrix")
    arms = next(iter(matrix.TASKS.values())).groups[0].arms
    pieces = list(matrix.pieces())
    assert sorted((piece.arm.name, piece.seed) for piece in pieces) == sorted(
        (arm.name, seed) for arm in matrix.ARMS.values() for seed in range(arm.seeds)
    )
    first = pieces[: len(arms)]
    assert {piece.seed for piece in first} == {0} and [piece.arm for piece in first] == list(arms)


def test_groups_and_arms_have_names_of_their_own(evidence):
    tasks = evidence("matrix").TASKS.values()
    names = [*(task.name for task in tasks), *(group.name for task in tasks for group in task.groups)]
    names += {arm.name: arm for task in tasks for arm in task.arms}
    assert len(evidence("matrix").ARMS) == len({arm for task in tasks for arm in task.arms})
    assert len(set(names)) == len(names)


def test_an_unknown_name_is_refused_with_those_that_are_known(evidence):
    named = evidence("matrix").named
    assert next(arm.name for arm in named(["dense"])) == "at_grpo_shared"
    with pytest.raises(SystemExit, match=r"dens is no task, group or arm; known are .*dense"):
        list(named(["dens"]))


def test_an_evaluation_needs_the_arms_that_its_policies_come_from(evidence):
    matrix = evidence("matrix")
    piece = matrix.Piece(matrix.ARMS["roles_combined"], 1)
    assert [need.key for need in matrix.needs(piece)] == ["planner_alone-1", "executor_alone-1"]
    for arm in matrix.ARMS.values():
        assert all(matrix.ARMS[name].keeps for name in arm.needs)


def test_the_last_arm_of_every_group_composes_and_is_accepted(evidence, composed):
    tasks = evidence("matrix").TASKS
    # The arms of `worlds` are skipped, because they need the libraries of hubs.
    groups = [group for name, task in tasks.items() if name not in ("plan_path", "worlds") for group in task.groups]
    for arm in (group.arms[-1] for group in groups):
        if isinstance(arm, evidence("arms").Evaluation):
            models = {role: Path("/models") / role for role in arm.roles}
            composed(arm, evidence("runs").weights(arm.trial, models, Path("/start")))
        else:
            composed(arm)


def test_the_floor_of_guide_and_driver_is_that_of_its_held_out_boards(evidence):
    boards = [boards_of(item.row(0, TEST)["extra_info"])[0] for item in items(200, split=TEST)]
    exact = blind_bound(boards, moves=6, min_distance=3)
    assert pytest.approx(exact, abs=5e-4) == evidence("tasks.guide_driver").FLOOR


def test_the_arm_with_adapters_differs_from_full_weights_in_adapters_and_learning_rate_only(evidence, composed):
    task = evidence("tasks.split_clues")
    full, adapted = task.ADAPTER_ARMS
    _, team = composed(adapted)
    assert adapters(team, "main") == Run(None, team).trained == [task.SENDER, task.RECEIVER]
    assert (adapted.trial, adapted.start, adapted.workflow) == (full.trial, full.start, full.workflow)
    differing = {setting.partition("=")[0] for setting in {*adapted.overrides} ^ {*full.overrides}}
    model, rate = "actor_rollout_ref.model.lora_", "actor_rollout_ref.actor.optim.lr"
    assert differing == {"mas.policies", f"{model}rank", f"{model}alpha", rate}
