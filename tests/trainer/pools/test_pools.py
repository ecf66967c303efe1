"""Pools without Ray."""

from __future__ import annotations

import time

import pytest

from verl_mas.config import load
from verl_mas.trainer.pools import pools


class Recorder:
    """Works briefly, and records which others worked at the same time."""

    def __init__(self):
        self.active, self.met = set(), []

    def __call__(self, name):
        self.active.add(name)
        self.met.append(self.active.copy())
        time.sleep(0.02)
        self.active.remove(name)


def made(**where):
    """Pools without Ray."""
    instance = pools.Pools.__new__(pools.Pools)
    policies = {name: {"pool": pool} for name, pool in where.items()}
    instance.mas = load({"policies": policies, "pools": {"big": {"nnodes": 2, "n_gpus_per_node": 8}}})
    return instance


def test_pools_work_at_the_same_time_and_policies_of_one_pool_in_turn():
    work = Recorder()
    made(a="shared", b="big", c="shared").each(["a", "b", "c"], work)
    assert any({"b"} < met for met in work.met)
    assert not any({"a", "c"} <= met for met in work.met)


def test_a_failure_on_one_pool_reaches_the_caller():
    with pytest.raises(KeyError, match="b"):
        made(a="shared", b="big").each(["a", "b"], {"a": 1}.__getitem__)


def test_engines_of_a_policy_may_be_on_another_pool_than_it_trains_on():
    instance = made(a="big", b="shared")
    instance.mas.policies["a"].engines = "shared"
    instance._pools = {"big": "the big one", "shared": "the shared one"}  # noqa: SLF001  # not made without Ray
    assert (instance.of("a"), instance.serving("a")) == ("the big one", "the shared one")
    assert instance.of("b") == instance.serving("b") == "the shared one"
