import logging

import pytest
from data_rows import QUESTIONS

from verl_mas.checks import run
from verl_mas.checks.run import examine, examine_command, exit_on_error, finalize_team, require_accepted
from verl_mas.errors import ConfigError, ConfigWarning

RUN = ["+platform=cpu", "actor_rollout_ref.model.path=hub/tiny", "trainer.save_freq=20", *QUESTIONS]
TEAM = [*RUN, "+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.rollout.n=4"]


def nested(depth):
    return nested(depth + 1)


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        (lambda: int("x"), "raised ValueError: invalid literal"),
        (lambda: nested(0), "raised RecursionError"),
        (lambda: exit(0), "raised SystemExit: 0"),
    ],
)
def test_any_other_exception_ends_the_run_with_its_traceback_and_exit_code_1(raises, says):
    with pytest.raises(SystemExit, match=says) as ended, exit_on_error():
        raises()
    assert "Traceback" in str(ended.value.code)


def test_the_machine_the_team_and_every_policys_model_and_engine_are_reported_in_one_call(two):
    overrides = [{"model": {"path": "/nowhere"}}, {"actor": {"checkpoint": {"async_save": True}}}]
    config = two(mas__policies={name: {"overrides": o} for name, o in zip("ab", overrides, strict=True)})
    config.mas.updates_per_step = 64
    finalize_team(config)
    refused = [error.value for error in examine(config).errors]
    assert {
        "actor_rollout_ref.model.path=/nowhere does not exist",
        "mas.policies.b.overrides.actor.checkpoint.async_save=True",
    } < set(refused)
    assert "policy a: 64 optimiser steps for 32 sessions" in refused


def test_a_run_without_a_team_reports_all_errors(make):
    config = make(actor_rollout_ref__model__path="/nowhere", actor_rollout_ref__actor__checkpoint__async_save=True)
    config.ray_kwargs.ray_init.num_cpus = 1
    config.trainer.v1.trainer_mode, config.mas = "sync", None
    report = examine(config)
    assert len(report.errors) == 3
    assert report.summary is None and report.verdict == "refused: 3 errors"


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, SystemExit])
def test_an_exception_in_a_check_is_an_error_with_its_traceback_beside_the_other_errors(two, monkeypatch, error):
    def breaks(run):
        yield ConfigWarning("y=1", reason="y is most often 2", fix="set y=2")
        raise error("in a check")

    monkeypatch.setattr(run.run_folder, "check_checkpoint", breaks)
    report = examine(two(actor_rollout_ref__model__path="/nowhere"))
    path, raised = report.errors
    assert path.value.endswith("/nowhere does not exist")
    assert f"a check raised {error.__name__}: in a check" in raised.value and "Traceback" in raised.value
    assert report.verdict == "refused: 2 errors, 1 warning"


def test_a_team_and_a_run_without_one_are_accepted():
    team, stock = examine_command(TEAM), examine_command(RUN)
    assert team.accepted and stock.accepted
    assert team.summary and team.summary["workflow"] == "solver_verifier"
    assert stock.summary and stock.summary["workflow"] is None


def test_what_is_wrong_only_for_the_completion_is_an_error(monkeypatch):
    def breaks(config, mas):
        raise ConfigError("x=1", rule="x is 2", fix="set x=2")

    monkeypatch.setattr(run, "finalize", breaks)
    assert [error.value for error in examine_command(TEAM).errors] == ["x=1"]


def test_warnings_are_logged_once_before_a_run_and_errors_end_it(two, monkeypatch, caplog):
    def doubtful(run):
        for _ in range(2):
            yield ConfigWarning("y=1", reason="y is most often 2", fix="set y=2")

    monkeypatch.setattr(run.run_folder, "check_checkpoint", doubtful)
    with caplog.at_level(logging.WARNING):
        require_accepted(two())
    logged = [record.getMessage() for record in caplog.records]
    assert logged.count("y=1\n  reason: y is most often 2\n  fix:    set y=2") == 1
    wrong = two(actor_rollout_ref__model__path="/nowhere")
    with pytest.raises(SystemExit) as ended:
        require_accepted(wrong)
    assert str(ended.value).endswith(examine(wrong).problems)
    assert str(ended.value).endswith("refused: 1 error, 1 warning")
