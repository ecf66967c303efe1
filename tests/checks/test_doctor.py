import sys

import pytest

from verl_mas.checks import doctor
from verl_mas.cli import doctor as command
from verl_mas.errors import ConfigError


def test_a_plugin_that_can_be_imported_is_reported():
    assert [finding.seen for finding in doctor.look_at_plugin()] == ["verl loads it"]


def test_the_import_error_that_verl_hides_is_reported(monkeypatch):
    monkeypatch.delitem(sys.modules, doctor.PLUGIN)
    monkeypatch.setitem(sys.modules, "wrapt", None)
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
    (entry,) = (e for e in doctor.installed("verl.plugins") if e.value == doctor.PLUGIN)
    monkeypatch.setattr(doctor, "installed", lambda group: [entry] * copies)
    (finding,) = doctor.look_at_plugin()
    assert finding.ok is False


def test_a_version_outside_the_range_is_refused():
    requirement = doctor.Requirement("verl>=9")
    finding = doctor.look_at_package(requirement)
    assert finding.ok is False
    assert "outside >=9" in finding.seen
    assert finding.fix == "pip install 'verl>=9'"


def test_a_problem_of_the_machine_is_a_warning_of_the_run():
    bad = doctor.Aspect("numpy", "9, outside <3", False, "pip install 'numpy<3'")
    (warning,) = doctor.problems([doctor.Aspect("ray", "2"), doctor.Aspect("GPUs", "none", None), bad])
    assert (warning.value, warning.fix) == ("numpy: 9, outside <3", "pip install 'numpy<3'")


def test_a_verl_of_another_version_is_named(monkeypatch):
    assert "verl's internals" not in [finding.what for finding in doctor.diagnose(thorough=False)]
    monkeypatch.setattr(doctor, "VERSION", "0.9.0")
    assert "verl's internals" in [finding.what for finding in doctor.diagnose(thorough=False)]


def test_the_exit_code_is_1_with_a_problem_and_else_0(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "diagnose", lambda gpu: iter([doctor.Aspect("x", "fine")]))
    assert command.main([]) == 0
    monkeypatch.setattr(doctor, "diagnose", lambda gpu: iter([doctor.Aspect("x", "bad", False, "do this")]))
    assert command.main([]) == 1
    assert "fix: do this" in capsys.readouterr().out


def test_what_a_machine_with_gpus_lacks_is_listed(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "which", lambda name: None)
    monkeypatch.setattr(doctor, "nvcc", lambda: None)
    monkeypatch.setattr(doctor, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    lacking = {finding.what: finding.ok for finding in doctor.look_at_gpu_tools()}
    assert lacking == {"C compiler": False, "Python headers": False, "nvcc": None, "cupy": None, "flash-attn": None}
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor, "which", lambda name: f"/usr/bin/{name}")
    assert [finding.seen for finding in doctor.look_at_gpu_tools()][:2] == ["/usr/bin/gcc", f"{tmp_path}/Python.h"]


def test_the_layers_of_the_sandbox_and_its_probes_are_listed():
    findings = {finding.what: finding for finding in doctor.look_at_sandbox()}
    assert findings["sandbox, seccomp"].seen == "active"
    assert findings["sandbox"].ok and findings["sandbox"].seen.startswith("14 of 14 probes held")


def test_a_machine_without_a_sandbox_is_no_problem_and_has_a_fix(monkeypatch):
    async def layers(self):
        raise ConfigError("no filter of system calls", rule="Linux", fix="use a service")

    monkeypatch.setattr(doctor.Contained, "layers", layers)
    (finding,) = doctor.look_at_sandbox()
    assert (finding.ok, finding.seen, finding.fix) == (None, "no filter of system calls", "use a service")


def test_a_probe_that_gets_through_is_a_problem(monkeypatch):
    async def got_through(executor):
        return ["read a file (got through)"]

    monkeypatch.setattr(doctor, "got_through", got_through)
    *_, finding = doctor.look_at_sandbox()
    assert finding.ok is False
    assert finding.seen.startswith("13 of 14 probes held; ") and "programs can read a file" in finding.seen
