"""Settings that an asynchronous mode accepts; `rules/test_rules.py` has those that it refuses."""

import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.config.modes import COLOCATED, MODES, SEPARATE
from verl_mas.engines.serving import resolve_serving
from verl_mas.errors import ConfigWarning

SAMPLER = {"trainer__v1__sampler__max_off_policy_threshold": 2, "trainer__v1__sampler__max_off_policy_strategy": "wait"}
WAIT = {"trainer__v1__trainer_mode": COLOCATED.name, **SAMPLER}
TOKEN = {"algorithm__rollout_correction__rollout_is": "token"}
APART = {
    "trainer__v1__trainer_mode": SEPARATE.name,
    "trainer__v1__separate_async__parameter_sync_step": 1,
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "ray",
    **SAMPLER,
    **TOKEN,
}


def found(config):
    """Return the problems of the rules for modes and training."""
    run = resolve_serving(ExaminedRun.of(config))
    rules = (one for one in every_rule().values() if one.check.__module__.rpartition(".")[2] in ("modes", "training"))
    return [problem for rule in rules for problem in rule.problems(run)]


MORE_AHEAD = {"trainer__v1__colocate_async__num_warmup_batches": 2, "trainer__v1__sampler__max_off_policy_threshold": 3}


@pytest.mark.parametrize(
    "settings", [{}, {**WAIT, **TOKEN}, APART, {**WAIT, **TOKEN, **MORE_AHEAD}], ids=[*MODES, "more steps ahead"]
)
def test_every_mode_is_accepted_with_what_its_word_sets(two, settings):
    assert found(two(**settings)) == []


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
