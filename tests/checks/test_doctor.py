import sys

import pytest

from verl_mas.checks import doctor
from verl_mas.cli import doctor as command
from verl_mas.errors import ConfigError


def plugin() -> doctor.Aspect:
    (finding,) = doctor.look_at_plugin()
    return finding


def test_a_plugin_that_verl_does_not_load_or_loads_twice_is_reported_with_the_error_that_verl_hides(monkeypatch):
    assert plugin().seen == "verl loads it"
    (entry,) = (e for e in doctor.installed("verl.plugins") if e.value == doctor.PLUGIN)
    for copies in (0, 2):
        with monkeypatch.context() as patched:
            patched.setattr(doctor, "installed", lambda group, copies=copies: [entry] * copies)
            assert plugin().ok is False
    with monkeypatch.context() as patched:
        patched.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
        assert plugin().ok is False and "VERL_USE_EXTERNAL_PLUGINS=none" in plugin().seen
    monkeypatch.delitem(sys.modules, doctor.PLUGIN)
    monkeypatch.setitem(sys.modules, "wrapt", None)
    assert plugin().ok is False and "import of wrapt halted" in plugin().seen


def test_a_version_outside_the_range_is_refused():
    finding = doctor.look_at_package(doctor.Requirement("verl>=9"))
    assert finding.ok is False and "outside >=9" in finding.seen and finding.fix == "pip install 'verl>=9'"


def test_a_problem_of_the_machine_is_a_warning_of_the_run():
    bad = doctor.Aspect("numpy", "9, outside <3", False, "pip install 'numpy<3'")
    (warning,) = doctor.problems([doctor.Aspect("ray", "2"), doctor.Aspect("GPUs", "none", None), bad])
    assert (warning.value, warning.fix) == ("numpy: 9, outside <3", "pip install 'numpy<3'")


def test_a_verl_of_another_version_is_named(monkeypatch):
    assert "verl's internals" not in [finding.what for finding in doctor.diagnose(thorough=False)]
    monkeypatch.setattr(doctor, "VERSION", "0.9.0")
    assert "verl's internals" in [finding.what for finding in doctor.diagnose(thorough=False)]


@pytest.mark.parametrize(("sound", "code", "says"), [(True, 0, "Ready."), (False, 1, "fix: do this")])
def test_the_exit_code_is_1_with_a_problem_and_else_0(monkeypatch, capsys, sound, code, says):
    finding = doctor.Aspect("x", "seen", sound, "" if sound else "do this")
    monkeypatch.setattr(doctor, "diagnose", lambda gpu: iter([finding]))
    assert command.main([]) == code and says in capsys.readouterr().out


def test_what_a_machine_with_gpus_lacks_is_listed(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "get_path", lambda name: str(tmp_path))
    for name in ("which", "nvcc", "installed_version"):
        monkeypatch.setattr(doctor, name, lambda *given: None)
    lacking = {finding.what: finding.ok for finding in doctor.look_at_gpu_tools()}
    assert lacking == {"C compiler": False, "Python headers": False, "nvcc": None, "cupy": None, "flash-attn": None}
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor, "which", lambda name: f"/usr/bin/{name}")
    assert [finding.seen for finding in doctor.look_at_gpu_tools()][:2] == ["/usr/bin/gcc", f"{tmp_path}/Python.h"]


def test_layers_of_the_sandbox_and_a_probe_that_gets_through_are_listed_and_no_sandbox_is_no_problem(monkeypatch):
    async def got_through(executor):
        return ["read a file (got through)"]

    async def layers(self):
        raise ConfigError("no filter of system calls", rule="Linux", fix="use a service")

    findings = {finding.what: finding for finding in doctor.look_at_sandbox()}
    assert findings["sandbox, seccomp"].seen == "active"
    assert findings["sandbox"].ok and findings["sandbox"].seen.startswith("14 of 14 probes held")
    monkeypatch.setattr(doctor, "got_through", got_through)
    *_, finding = doctor.look_at_sandbox()
    assert finding.ok is False
    assert finding.seen.startswith("13 of 14 probes held; ") and "programs can read a file" in finding.seen
    monkeypatch.setattr(doctor.Contained, "layers", layers)
    (finding,) = doctor.look_at_sandbox()
    assert (finding.ok, finding.seen, finding.fix) == (None, "no filter of system calls", "use a service")
