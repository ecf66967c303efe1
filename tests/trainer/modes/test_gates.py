"""The order in which gates, engines and weights change at both ends of a step."""

from __future__ import annotations

import time
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from verl_mas.config.run import load
from verl_mas.trainer.modes.asynchronous import ColocatedAsyncTrainer, SeparateAsyncTrainer
from verl_mas.trainer.policies.separate import SeparatePolicy
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.pools.pools import Pools
from verl_mas.trainer.trainer import TeamTrainer

APART = {
    "policies": {"a": {"engines": "serve"}, "guide": {"trainable": False}, "b": {"engines": "serve"}},
    "pools": {name: {} for name in ("a", "b", "serve", "guides")},
}
KINDS = {"a": SeparatePolicy, "guide": FrozenPolicy, "b": SeparatePolicy}


def member(name, log, together):
    """A policy without its processes."""

    def abort():
        # Passed only if all members are here at the same time.
        together.wait(timeout=5)
        log.append("abort")

    policy = object.__new__(KINDS[name])
    policy.abort, policy.wake = abort, lambda step: log.append(f"wake {name} {step}")
    policy.sleep, policy.resume = (partial(log.append, f"{moment} {name}") for moment in ("sleep", "resume"))
    return policy


AWAKE = ["wake a 3", "wake guide 3", "wake b 3"]
ASLEEP = ["sleep a", "sleep guide", "sleep b"]
RESUMED = ["resume a", "resume guide", "resume b"]
# A policy gets its weights behind its own gate, and a frozen one serves on.
BEHIND_ITS_GATE = ["close ['a']", "wake a 3", "open ['a']", "close ['b']", "wake b 3", "open ['b']"]


@pytest.mark.parametrize(
    ("kind", "moment", "expected"),
    [
        (ColocatedAsyncTrainer, "on_init_end", AWAKE),
        (ColocatedAsyncTrainer, "on_sample_end", ["close all", "abort", "abort", "abort", *ASLEEP]),
        (ColocatedAsyncTrainer, "on_step_end", [*AWAKE, *RESUMED, "open all"]),
        (SeparateAsyncTrainer, "on_init_end", AWAKE),
        (SeparateAsyncTrainer, "on_sample_end", []),
        (SeparateAsyncTrainer, "on_step_end", BEHIND_ITS_GATE),
    ],
)
def test_engines_are_aborted_at_once_behind_closed_gates_and_requests_come_last(monkeypatch, kind, moment, expected):
    made, log, together = object.__new__(kind), [], Barrier(len(KINDS))
    made.members = {name: member(name, log, together) for name in KINDS}
    made.pools = SimpleNamespace(each=lambda names, work: [work(name) for name in names])
    made.agent_loop_manager = SimpleNamespace(
        pause=lambda names="all": log.append(f"close {names}"), resume=lambda names="all": log.append(f"open {names}")
    )
    made.global_steps, made.curr_step_profile, made.timing_raw = 3, False, {}
    made.mas = load(APART)
    monkeypatch.setattr("verl_mas.trainer.trainer.refresh", lambda members, step: None)
    made.on_init_end()
    if moment != "on_init_end":
        log.clear()
        getattr(made, moment)()
    assert log == expected


@pytest.mark.parametrize(("serving", "together"), [(("serve", "serve"), 1), (("serve", "guides"), 2)])
def test_policies_of_two_pools_are_sent_to_one_serving_pool_in_turn(serving, together):
    made, sending, most = object.__new__(SeparateAsyncTrainer), [], []

    def send(step):
        sending.append(step)
        time.sleep(0.05)
        most.append(len(sending))
        sending.pop()

    policies = {name: {"pool": name, "engines": to} for name, to in zip("ab", serving, strict=True)}
    made.mas = load({**APART, "policies": policies})
    made.members = {name: object.__new__(SeparatePolicy) for name in "ab"}
    for policy in made.members.values():
        policy.wake = send
    made.pools, made.agent_loop_manager, made.global_steps, made.timing_raw = object.__new__(Pools), Mock(), 3, {}
    made.pools.mas = made.mas
    made.on_init_end()
    made.on_step_end()
    assert max(most) == together


def test_a_synchronous_run_has_other_clients():
    policy = Mock()
    for kind in (TeamTrainer, ColocatedAsyncTrainer):
        made = object.__new__(kind)
        made.members = {"main": policy}
        made._client_of("main", None)
    assert policy.client.call_args_list == [call(None), call(None, resumes=True)]
