from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from verl_mas.checks import pools
from verl_mas.checks.team import validate
from verl_mas.config.compose import compose


@pytest.fixture
def composed(evidence, monkeypatch):
    monkeypatch.setattr(pools, "available", lambda config: None)
    matrix = evidence("matrix")

    def of(workflow, overrides):
        base = ("+platform=cpu", f"+mas={workflow}")
        config = compose([*base, *matrix.SETTINGS, *overrides])
        GlobalHydra.instance().clear()
        return config, validate(config)

    return of


def test_every_kind_of_arm_composes_and_samples_the_same_number_of_replies(evidence, composed):
    matrix = evidence("matrix")
    alike = (matrix.SPARSE_ARMS[0], matrix.SIZE_ARMS[0], matrix.UNEVEN_ARMS[-1], matrix.ARMS["planner_alone"])
    for arm in (*matrix.DENSE_ARMS, *alike):
        config, team = composed(arm.workflow, arm.overrides)
        acts = 2 if arm.workflow == matrix.TEAM else 1
        each = team.branch.k * config.actor_rollout_ref.rollout.n
        assert config.data.train_batch_size * acts * each == 2 * matrix.BOARDS * matrix.K, arm.name
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.data.train_batch_size, arm.name
        assert team.branch.validation_k == 1, arm.name


def test_a_role_trained_alone_has_a_frozen_partner(evidence, composed):
    arm = evidence("matrix").ARMS["planner_alone"]
    _, team = composed(arm.workflow, arm.overrides)
    assert {name: policy.trainable for name, policy in team.policies.items()} == {"planner": True, "executor": False}


def test_an_evaluation_composes_with_each_roles_own_weights(evidence, composed):
    models = {"planner": Path("/models/one"), "executor": Path("/models/two")}
    config, team = composed(evidence("matrix").TEAM, evidence("runs").weights(models, Path("/start")))
    assert config.trainer.val_only
    for role, path in models.items():
        assert team.policies[team.agents[role].policy].overrides["model"]["path"] == str(path)


def test_the_matrix_holds_every_arm_once_a_seed_and_compares_arms_before_seeds(evidence):
    matrix = evidence("matrix")
    pieces = list(matrix.pieces())
    ranked = {*matrix.DENSE_ARMS, *matrix.SPARSE_ARMS}
    seeds = {arm: matrix.SEEDS if arm in ranked else matrix.FEWER for arm in matrix.ARMS.values()}
    assert sorted((piece.arm.name, piece.seed) for piece in pieces) == sorted(
        (arm.name, seed) for arm, count in seeds.items() for seed in range(count)
    )
    first = pieces[: len(matrix.DENSE_ARMS)]
    assert {piece.seed for piece in first} == {0} and [piece.arm for piece in first] == list(matrix.DENSE_ARMS)


def test_an_evaluation_needs_the_arms_that_its_policies_come_from(evidence):
    matrix = evidence("matrix")
    piece = matrix.Piece(matrix.ARMS["roles_combined"], 3)
    assert [need.key for need in piece.needs] == ["planner_alone-3", "executor_alone-3"]
    for arm in matrix.ARMS.values():
        assert all(matrix.ARMS[name].keeps for name in arm.needs)
