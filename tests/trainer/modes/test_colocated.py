"""The order in which gates, engines and weights change at both ends of a step."""

from __future__ import annotations

from functools import partial
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from verl_mas.trainer.modes.asynchronous import ColocatedAsyncTrainer
from verl_mas.trainer.trainer import TeamTrainer


def member(name, log, together):
    def abort():
        # Passed only if all members are here at the same time.
        together.wait(timeout=5)
        log.append("abort")

    does = {moment: partial(log.append, f"{moment} {name}") for moment in ("sleep", "resume")}
    return SimpleNamespace(abort=abort, wake=lambda step: log.append(f"wake {name} {step}"), **does)


@pytest.fixture
def trainer(monkeypatch):
    made, log, together = object.__new__(ColocatedAsyncTrainer), [], Barrier(2)
    made.members = {name: member(name, log, together) for name in ("main", "frozen")}
    made.pools = SimpleNamespace(each=lambda names, work: [work(name) for name in names])
    made.agent_loop_manager = SimpleNamespace(
        pause=lambda: log.append("gates closed"), resume=lambda: log.append("gates open")
    )
    made.log, made.global_steps, made.curr_step_profile, made.timing_raw = log, 3, False, {}
    monkeypatch.setattr("verl_mas.trainer.trainer.refresh", lambda members, step: None)
    return made


@pytest.mark.parametrize(
    ("moment", "log"),
    [
        ("on_init_end", ["wake main 3", "wake frozen 3"]),
        ("on_sample_end", ["gates closed", "abort", "abort", "sleep main", "sleep frozen"]),
        ("on_step_end", ["wake main 3", "wake frozen 3", "resume main", "resume frozen", "gates open"]),
    ],
)
def test_all_engines_are_aborted_at_once_behind_closed_gates_and_requests_come_last(trainer, moment, log):
    getattr(trainer, moment)()
    assert trainer.log == log


def test_a_synchronous_run_has_other_clients():
    policy = Mock()
    for kind in (TeamTrainer, ColocatedAsyncTrainer):
        made = object.__new__(kind)
        made.members = {"main": policy}
        made._client_of("main", None)
    assert policy.client.call_args_list == [call(None), call(None, resumes=True)]
