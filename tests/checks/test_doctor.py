import sys

import pytest

from verl_mas.checks import doctor
from verl_mas.cli import doctor as command


@pytest.fixture
def broken_plugin(tmp_path, monkeypatch):
    """A Python in which the plugin's first import fails."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['wrapt'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_loaded_plugin_is_reported(warm_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm_python)
    assert [finding.seen for finding in doctor.look_at_plugin()] == ["loaded by verl"]


def test_the_import_error_that_verl_hides_is_reported(broken_plugin):
    (finding,) = doctor.look_at_plugin()
    assert finding.ok is False
    assert "import of wrapt halted" in finding.seen


def test_a_plugin_that_is_turned_off_is_reported(monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    (finding,) = doctor.look_at_plugin()
    assert finding.ok is False
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in finding.seen


@pytest.mark.parametrize("copies", [0, 2])
def test_no_copy_or_a_second_copy_of_the_plugin_is_refused(monkeypatch, copies):
    (entry,) = (e for e in doctor.entry_points(group="verl.plugins") if e.value == doctor.PLUGIN)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [entry] * copies)
    (finding,) = doctor.look_at_plugin()
    assert finding.ok is False


def test_a_version_outside_the_range_is_refused():
    requirement = doctor.Requirement("verl>=9")
    finding = doctor.look_at_package(requirement)
    assert finding.ok is False
    assert "outside >=9" in finding.seen
    assert finding.fix == "pip install 'verl>=9'"


def test_every_reason_why_a_config_cannot_run_is_a_finding():
    overrides = ["+platform=cpu", "actor_rollout_ref.model.path=/nowhere", "actor_rollout_ref.rollout.name=sglangg"]
    composes, *findings = doctor.look_at_config(overrides)
    assert composes.ok
    assert [finding.ok for finding in findings] == [False, False]
    assert "path=/nowhere" in findings[1].seen
    assert findings[1].fix == "set the model path to an existing folder or to owner/name"
    fits = list(doctor.look_at_config(["+platform=cpu", "actor_rollout_ref.model.path=hub/tiny"]))
    assert [finding.seen for finding in fits] == ["composes", "accepted"]


def test_a_team_is_checked_as_before_a_run():
    overrides = ["+platform=cpu", "+mas=solver_verifier", "actor_rollout_ref.model.path=hub/tiny"]
    _, team = doctor.look_at_config([*overrides, "algorithm.adv_estimator=agent_grpo"])
    assert (team.what, team.ok) == ("team", True)
    _, team = doctor.look_at_config([*overrides, "algorithm.adv_estimator=grpo"])
    assert (team.ok, team.fix) == (False, "set algorithm.adv_estimator=agent_grpo")


def test_a_mistyped_override_is_a_finding():
    (finding,) = doctor.look_at_config(["trainer.no_such_key=1"])
    assert finding.ok is False
    assert "no_such_key" in finding.seen


def test_the_exit_code_is_1_with_a_problem_and_else_0(monkeypatch, capsys):
    monkeypatch.setattr(command, "diagnose", lambda argv: iter([doctor.Finding("x", "fine")]))
    assert command.main([]) == 0
    monkeypatch.setattr(command, "diagnose", lambda argv: iter([doctor.Finding("x", "bad", False, "do this")]))
    assert command.main([]) == 1
    assert "fix: do this" in capsys.readouterr().out
