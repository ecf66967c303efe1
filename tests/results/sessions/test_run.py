import pytest
import yaml

from verl_mas.errors import DataError
from verl_mas.results.sessions.run import open_run


def describe(folder, config, *attempts):
    content = {"format": 1, "attempts": list(attempts), "config": config}
    (folder / "run.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    describe(folder, {"mas": {"trajectories": {"dir": None}}}, {"command": "x"})
    return folder


def test_a_relative_folder_of_sessions_is_in_that_in_which_the_run_was_started_last(run, tmp_path, monkeypatch):
    (tmp_path / "started" / "records").mkdir(parents=True)
    attempts = {"folder": str(tmp_path)}, {"folder": str(tmp_path / "started")}
    describe(run, {"mas": {"trajectories": {"dir": "records"}}}, *attempts)
    monkeypatch.chdir("/")
    assert open_run(run).trajectories == tmp_path / "started" / "records"


def test_an_instance_has_the_settings_of_its_role_and_a_run_without_agents_in_its_settings_names_none(run):
    describe(run, {"mas": {"agents": {"solver": {"policy": "a"}, "judge": None}}})
    assert open_run(run).agent("solver_1") == {"policy": "a"} and list(open_run(run).agents) == ["solver", "judge"]
    for config in ({}, {"mas": None}, {"mas": {"agents": None}}):
        describe(run, config)
        found = open_run(run)
        assert (found.agents, found.policies, found.agent("solver")) == ({}, {}, {})


def test_a_folder_that_is_no_run_is_refused_with_the_runs_in_it_and_a_damaged_run_yaml_too(run, tmp_path):
    for folder, message in (
        (tmp_path, r"not the folder of a run(.|\n)*run.yaml or (.|\n)*give .*/run$"),
        (run / "trajectories", r"give .*/run$"),
        (tmp_path / "nowhere", "is not there"),
        (run / "run.yaml", "is not a folder"),
    ):
        with pytest.raises(DataError, match=message):
            open_run(folder)
    damaged = {"[1": "cannot be read", "- 1": "holds no mapping", "format: 7": "reads format 1"}
    for content, message in damaged.items():
        (run / "run.yaml").write_text(content)
        with pytest.raises(DataError, match=message):
            open_run(run)
