"""Policies that are trained on one pool and served on another."""

from __future__ import annotations

import pytest

from verl_mas.checks.team import validate

SEPARATE = {
    "trainer__v1__trainer_mode": "mas_separate_async",
    "trainer__v1__separate_async__parameter_sync_step": 1,
    "algorithm__rollout_correction__rollout_is": "token",
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "ray",
    "mas__pools": {"left": {}, "right": {}, "serve": {}},
    "mas__policies__a": {"pool": "left", "engines": "serve"},
    "mas__policies__b": {"pool": "right", "engines": "serve"},
}
ONE = {"mas__pools": {"left": {}, "serve": {}}}
MODE = {"trainer__v1__trainer_mode": "mas"}


def test_two_trainer_pools_and_one_serving_pool_are_accepted(two):
    assert validate(two(**SEPARATE)).policies["a"].engines == "serve"


def test_a_frozen_policy_may_be_on_the_serving_pool(two):
    frozen = {"mas__policies__b": {"trainable": False, "pool": "serve"}}
    assert validate(two(**{**SEPARATE, **frozen, **ONE})).policies["b"].pool == "serve"


def test_without_a_pool_that_is_named_one_serves_all_policies(two):
    mode = {name: value for name, value in SEPARATE.items() if not name.startswith("mas__")}
    frozen = {"mas__policies": {"a": {}, "b": {"trainable": False}}}
    mas = validate(two(**mode, **frozen))
    assert (mas.policies["a"].pool, mas.policies["a"].engines, mas.policies["b"].pool) == ("shared", "serve", "serve")


@pytest.mark.parametrize(
    ("settings", "value", "fix"),
    [
        (MODE, "mas.policies.a.engines=serve with trainer.v1.trainer_mode=mas", "mas_separate_async"),
        ({"mas__policies__a": {"pool": "left"}}, "mas.policies.a.engines=null", "++mas.policies.a.engines=serve"),
        ({"mas__policies__a": {"pool": "left", "engines": "left"}}, "engines=left and pool=left", "another pool"),
        ({"mas__policies__a": {"pool": "left", "engines": "sevre"}}, "mas.policies.a.engines=sevre", "serve"),
        ({"mas__policies__a": {"pool": "left", "engines": "right"}}, "on which policy b trains", "a.engines to a pool"),
        (
            {"mas__policies__b": {"trainable": False, "pool": "left"}, **ONE},
            "b.pool=left, on which policy a trains",
            "b.pool to a pool",
        ),
        (
            {"mas__policies__b": {"trainable": False, "pool": "right", "engines": "serve"}},
            "mas.policies.b.engines=serve of a policy that is not trained",
            "++mas.policies.b.pool=serve",
        ),
        (
            {"mas__policies__past": {"snapshot": {"of": "a", "every": 2}, "pool": "serve"}},
            "mas.policies.past.snapshot.of=a",
            "remove the snapshot",
        ),
        (
            {"mas__policies__b": {"adapter_of": "base"}, **ONE},
            "mas.policies.b.adapter_of=base",
            "model.lora.merge=True",
        ),
    ],
)
def test_engines_where_none_can_be_are_refused(refused, settings, value, fix):
    found = [error for error in refused(**{**SEPARATE, **settings}) if value in error.value]
    assert found and fix in found[0].fix, found
