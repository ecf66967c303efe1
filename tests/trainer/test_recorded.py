import json
import math
import subprocess
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import Tracking

from verl_mas.config import cluster as clusters
from verl_mas.config.compose import compose
from verl_mas.config.run import Run
from verl_mas.run_folder.about import attempts, read_about
from verl_mas.run_folder.lock import RunLock
from verl_mas.run_folder.metrics.file import MetricsFile, file_of_verl, read_steps
from verl_mas.trainer.recorded import attempt, cluster, git_state, logging_to, places, seeds
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.util import cores


@pytest.fixture(scope="module")
def config():
    settings = ("trainer.logger=[console,file]", "trainer.save_freq=5", "data.seed=3")
    return compose(["+mas=team", "+platform=cpu", *settings])


@pytest.fixture
def send(config, monkeypatch):
    """Send a command from the driver, to the workers of its own cluster or of the one at an address."""

    def send(*command, address=None):
        sent = config.copy()
        monkeypatch.setattr("sys.orig_argv", ["python", *command])
        monkeypatch.setattr(clusters, "address", lambda config: address)
        monkeypatch.setenv(clusters.COMMAND, "")
        clusters.send_command(sent)
        return sent

    return send


def test_a_start_has_its_command_without_secrets_its_versions_and_seeds(send):
    start = attempt(Run.of(send("-m", "verl.trainer.main_ppo", "x=${y}", "api_key=abc")), resumed=4)
    assert start["command"] == "python -m verl.trainer.main_ppo 'x=${y}' 'api_key=(not written)'"
    assert (start["resumed_from"], start["versions"]["verl"], start["seeds"]["data.seed"]) == (4, "0.9.1", 3)
    assert start["cluster"] is None, "Ray does not run"


def test_the_workers_of_a_cluster_that_runs_already_get_the_command_by_the_configuration(send, monkeypatch):
    config = send("x=${y}", address="auto")
    sent = OmegaConf.to_container(config.ray_kwargs, resolve=True)["ray_init"]["runtime_env"]["env_vars"]
    monkeypatch.setenv(clusters.COMMAND, sent[clusters.COMMAND])
    assert clusters.sent_command() == "python 'x=${y}'"


def test_git_is_read_where_it_is(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    for command in ("init -q -b main", "-c user.name=a -c user.email=a commit -q --allow-empty -m a"):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    found = git_state(tmp_path)
    assert len(found["commit"]) == 40 and found["branch"] == "main" and found["changed_files"] == []
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None


def test_every_seed_of_a_configuration_is_found():
    config = {"a": {"seed": 1, "b": [2]}, "seed": None, "p": {"overrides": {"x.seed": 5}}}
    assert dict(seeds(config)) == {"a.seed": 1, "p.overrides.x.seed": 5}


def test_a_cluster_is_the_sum_of_its_nodes_that_live():
    node = {"CPU": 8.0, "GPU": 2.0, "memory": 2.0**34, "accelerator_type:H200": 1.0}
    nodes = [{"Alive": True, "Resources": node}, {"Alive": True, "Resources": node}, {"Alive": False, "Resources": {}}]
    found = {"nodes": 2, "gpus": 4, "gpu": ["H200"], "cpus": 16, "memory_gib": 32}
    assert cluster(nodes, "cuda") == found
    assert cluster(nodes, "cpu") == {**found, "gpus": 0, "cpus": cores()}, "Ray's counts serve for scheduling"


def test_where_everything_is_written_is_one_block(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    lines = places(Run.of(config), tmp_path).splitlines()
    assert lines[0] == f"folder of this run: {tmp_path}"
    named = dict(line.split(maxsplit=1) for line in lines[1:])
    assert named["sessions"] == f"{tmp_path}/trajectories"
    assert named["checkpoints"] == f"{tmp_path}/global_step_N, every 5 steps"
    assert named["loggers"].startswith(f"console, file ({tmp_path}/verl")


@pytest.fixture
def trainer(config):
    trainer = object.__new__(TeamTrainer)
    trainer.config, trainer.run = config, Run.of(config)
    return trainer


@pytest.mark.parametrize(("error", "by"), [(None, "finished"), (ValueError("no\nway"), "ValueError: no")])
def test_a_run_records_how_it_ended(trainer, tmp_path, monkeypatch, error, by):
    monkeypatch.setattr(PPOTrainer, "fit", Mock(side_effect=error))
    trainer.lock = RunLock(tmp_path)
    trainer.record()
    with pytest.raises(ValueError, match="no") if error else nullcontext():
        trainer.fit(Mock())
    (start,) = attempts(read_about(tmp_path))
    assert start["ended"]["by"] == by
    trainer.lock.close()


def test_an_evaluation_writes_nothing(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(PPOTrainer, "fit", Mock())
    trainer.record()
    trainer.fit(Mock())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "ROOT"):
        monkeypatch.delenv(f"VERL_FILE_LOGGER_{name}", raising=False)
    return tmp_path


def trained(steps, own=None, until=None, backends=("file",)):
    """Log steps like verl's trainer."""
    with logging_to(own, until):
        loggers = trainer_base.Tracking("team", "first", default_backend=list(backends), config={})
        for step in steps:
            loggers.log(data={"a": step}, step=step)


def logged(here):
    return [json.loads(line) for line in (here / "team/first.jsonl").read_text().splitlines()]


def test_every_step_is_in_the_folder_of_the_run_whatever_its_loggers_are(here):
    trained([1, 2], MetricsFile(here), backends=("console",))
    assert [(step.number, step.values) for step in read_steps(here / "metrics.jsonl")] == [(1, {"a": 1}), (2, {"a": 2})]
    assert not (here / "team").exists()


def test_verls_file_has_the_steps_before_a_resume_once_and_starts_over_with_a_run_that_does(here):
    trained([1, 2, 3, 4])
    trained([3, 4, 5], until=2)
    assert logged(here) == [{"step": step, "data": {"a": step}} for step in range(1, 6)]
    trained([1])
    trained([9], until=math.inf)
    assert [line["step"] for line in logged(here)] == [1, 9], "an evaluation keeps it"


@pytest.mark.parametrize("variable", ["VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT", None])
def test_the_file_is_looked_for_where_verl_writes_it(here, monkeypatch, variable):
    if variable:
        monkeypatch.setenv(variable, str(here / "set"))
    trained([1])
    assert [path for path in here.rglob("*") if path.is_file()] == [file_of_verl("team", "first").absolute()]


def test_other_trainers_of_the_process_have_verls_own_loggers(here):
    with pytest.raises(RuntimeError), logging_to(None, None):
        raise RuntimeError
    assert trainer_base.Tracking is Tracking
