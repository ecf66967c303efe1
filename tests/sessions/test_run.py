import pytest
import yaml

from verl_mas.errors import DataError
from verl_mas.run_folder.metrics import MetricsFile
from verl_mas.sessions.run import open_run


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    content = {"format": 1, "attempts": [{"command": "x"}], "config": {"mas": {"trajectories": {"dir": None}}}}
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    MetricsFile(folder).log({"a": 1}, 1)
    return folder


def test_a_run_has_its_settings_metrics_and_sessions(run):
    found = open_run(run)
    assert found.folder == run
    assert found.config.mas.trajectories.dir is None
    assert found.about == {"format": 1, "attempts": [{"command": "x"}]}
    assert [(step.number, step.values) for step in found.steps()] == [(1, {"a": 1.0})]
    assert found.trajectories == run / "trajectories"


def test_a_relative_folder_of_sessions_is_in_that_in_which_the_run_was_started_last(run, tmp_path, monkeypatch):
    (tmp_path / "started" / "records").mkdir(parents=True)
    about = yaml.safe_load((run / "run.yaml").read_text())
    about["config"]["mas"]["trajectories"]["dir"] = "records"
    about["attempts"] = [{"folder": str(tmp_path)}, {"folder": str(tmp_path / "started")}]
    (run / "run.yaml").write_text(yaml.safe_dump(about))
    monkeypatch.chdir("/")
    assert open_run(run).trajectories == tmp_path / "started" / "records"


@pytest.mark.parametrize("config", [{}, {"mas": None}, {"mas": {"agents": None}}])
def test_a_run_without_agents_in_its_settings_names_none(run, config):
    (run / "run.yaml").write_text(yaml.safe_dump({"format": 1, "config": config}))
    found = open_run(run)
    assert (found.agents, found.policies, found.agent("solver")) == ({}, {}, {})


def test_an_instance_has_the_settings_of_its_role(run):
    content = {"format": 1, "config": {"mas": {"agents": {"solver": {"policy": "a"}, "judge": None}}}}
    (run / "run.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    assert open_run(run).agent("solver_1") == {"policy": "a"} and list(open_run(run).agents) == ["solver", "judge"]


def test_a_folder_that_is_no_run_is_refused_and_the_runs_in_it_are_named(run, tmp_path):
    with pytest.raises(DataError, match=r"not the folder of a run(.|\n)*run.yaml or (.|\n)*give .*/run$"):
        open_run(tmp_path)
    with pytest.raises(DataError, match=r"give .*/run$"):
        open_run(run / "trajectories")
    with pytest.raises(DataError, match="is not there"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is not a folder"):
        open_run(run / "run.yaml")


@pytest.mark.parametrize(
    ("content", "message"), [("[1", "cannot be read"), ("- 1", "holds no mapping"), ("format: 7", "reads format 1")]
)
def test_a_damaged_run_yaml_is_refused(run, content, message):
    (run / "run.yaml").write_text(content)
    with pytest.raises(DataError, match=message):
        open_run(run)
