from __future__ import annotations

from pathlib import Path

import pytest

from verl_mas.checks.environment import check_environment, declared, environment_of_workers


def test_a_variable_that_would_end_the_run_is_refused_with_the_value_that_is_meant(monkeypatch, make):
    monkeypatch.setenv("VERL_LOGGING_LEVEL", "VERBOSE")
    (refused,) = check_environment(make())
    assert "VERL_LOGGING_LEVEL=VERBOSE" in refused.value and "unset VERL_LOGGING_LEVEL" in refused.fix


@pytest.mark.parametrize("name", sorted(name for name in declared() if "*" not in name))
def test_a_value_of_another_kind_is_refused_for_every_variable_that_is_declared(name, monkeypatch, make):
    monkeypatch.setenv(name, "/proc/no error here")
    *_, refused = check_environment(make())
    assert name in refused.value and declared()[name]["about"] in refused.rule


def test_what_the_workers_get_is_read_in_its_place(make, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/tmp")
    config = make(ray_kwargs__ray_init__runtime_env__env_vars={"HF_HOME": "/proc/hf"})
    with environment_of_workers(config):
        assert len(list(check_environment(config))) == 1
    (warned,) = check_environment(config)
    assert warned.value.startswith("HF_HOME has another value") and "/proc/hf" not in str(warned)


@pytest.mark.parametrize(("name", "found"), [("datasets.py", 1), ("json.py", 1), ("my_team.py", 0)])
def test_a_file_that_hides_a_package_is_warned_of(make, monkeypatch, tmp_path: Path, name: str, found: int):
    (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert len(list(check_environment(make()))) == found
