"""Rows of older weights are corrected, or there are none."""

from __future__ import annotations

import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.config.modes import COLOCATED
from verl_mas.engines.serving import settled
from verl_mas.errors import ConfigWarning

SAMPLER = {"trainer__v1__sampler__max_off_policy_threshold": 2, "trainer__v1__sampler__max_off_policy_strategy": "wait"}
WAIT = {"trainer__v1__trainer_mode": COLOCATED.name, **SAMPLER}


def found(config):
    return list(every_rule()["corrected"].problems(settled(ExaminedRun.of(config))))


def test_without_tasks_ahead_nothing_is_stale_so_nothing_must_be_corrected(two):
    ahead = {"trainer__v1__colocate_async__num_warmup_batches": 0, "trainer__v1__sampler__max_off_policy_threshold": 1}
    assert found(two(**{**WAIT, **ahead})) == []
    assert {type(problem) for problem in found(two(**WAIT))} == {ConfigWarning}


@pytest.mark.parametrize("bypass", [True, False])
def test_stale_rows_of_each_policy_are_corrected_or_bypassed(two, bypass):
    own = {"bypass_mode": True} if bypass else {"rollout_is": "token"}
    (warning,) = found(two(**WAIT, mas__policies={"a": {"rollout_correction": own}, "b": {}}))
    assert isinstance(warning, ConfigWarning) and warning.value.startswith("policy b")
    assert found(two(**WAIT, mas__policies={name: {"rollout_correction": own} for name in "ab"})) == []
