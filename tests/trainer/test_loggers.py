"""verl's loggers, with the real packages: each gets every metric of a run, and how the run ended."""

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from verl.trainer.ppo.v1 import trainer_base

from verl_mas.rollout.worker import ATTEMPT
from verl_mas.run_folder.metrics.file import read_steps
from verl_mas.trainer.recorded import logging_to

# Only the environment of `make test-hubs` has these packages.
for package in ("mlflow", "swanlab", "trackio"):
    pytest.importorskip(package)
pytestmark = pytest.mark.e2e
LOGGERS = ("tensorboard", "wandb", "mlflow", "trackio", "swanlab")
ATTACH = Path(__file__).parents[2] / "scripts" / "attach.py"
# trackio reads TRACKIO_DIR when it is imported.
TRACKIO = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage
(run,) = trackio.Api().runs("team")
print(json.dumps(SQLiteStorage.get_logs("team", run.name, run_id=run.id)))
"""
# name -> step -> value
Found = dict[str, dict[int, float]]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder into which all loggers write."""
    import wandb

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_LOG_DIR", str(tmp_path / "swanlog"))
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # Its process keeps the settings that it was started with.
    wandb.teardown()
    yield tmp_path
    wandb.teardown()


def by_name(points: Iterator[tuple[str, int, float]]) -> Found:
    found: Found = {}
    for name, step, value in points:
        # MLflow's names have no @. Generated texts are not metrics.
        if not name.startswith("val/generations"):
            found.setdefault(name.replace("_at_", "@"), {})[step] = value
    return found


def of_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for name in events.Tags()["scalars"]:
        yield from ((name, event.step, event.value) for event in events.Scalars(name))


def of_wandb(folder):
    for record in wandb_records(folder):
        for item in record.history.item:
            value = json.loads(item.value_json)
            name = item.key or "/".join(item.nested_key)
            if isinstance(value, int | float) and not name.startswith("_"):
                yield name, record.history.step.num, value


def wandb_records(folder):
    # W&B has no reader of these files in Python.
    from swanlab.converter.wb.wbdatastore import WBDataStoreReader
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        with WBDataStoreReader() as reader:
            reader.open(path)
            while data := reader.scan():
                yield Record.FromString(data)


def of_mlflow(folder):
    (run,) = mlflow_runs(folder)
    for name in run.data.metrics:
        for metric in mlflow_client(folder).get_metric_history(run.info.run_id, name):
            yield name, metric.step, metric.value


def mlflow_client(folder):
    import mlflow

    return mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")


def mlflow_runs(folder):
    client = mlflow_client(folder)
    return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])


def of_trackio(folder):
    done = subprocess.run([sys.executable, "-c", TRACKIO], stdout=subprocess.PIPE, check=True)
    for row in json.loads(done.stdout.splitlines()[-1]):
        step = row["step"]
        yield from ((name, step, value) for name, value in row.items() if name not in ("step", "timestamp"))


def of_swanlab(folder):
    for record in swanlab_records(folder):
        # Its own measurements of the machine begin with underscores.
        if record.HasField("scalar") and not record.scalar.key.startswith("__"):
            yield record.scalar.key, record.scalar.step, record.scalar.value.number


def swanlab_records(folder):
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    for path in sorted(folder.glob("swanlog/run-*/*.swanlab")):
        reader = DataStoreReader()
        reader.open(path)
        while data := reader.scan():
            yield Record.FromString(data)
        reader.close()


READ = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
    "trackio": of_trackio,
    "swanlab": of_swanlab,
}


def test_every_logger_has_all_metrics_of_a_run_and_gets_its_report(train_team, here, capsys):
    done = train_team(
        here,
        "Pair",
        f"trainer.logger=[{','.join(LOGGERS)}] trainer.project_name=team trainer.experiment_name=pair",
        "trainer.total_training_steps=2 trainer.test_freq=2 trainer.log_val_generations=1",
        "mas.policies={main:{},other:{}} mas.agents={copier:{policy:other}}",
    )
    folder = done.folder / "checkpoints"
    ours = {
        (step.number, name): value
        for step in read_steps(folder / "metrics.jsonl")
        for name, value in step.values.items()
    }
    assert {1, 2} == {step for step, _ in ours} and len(ours) > 300
    for logger, read in READ.items():
        found = by_name(read(here))
        points = {(step, name): value for name, values in found.items() for step, value in values.items()}
        assert points.keys() == ours.keys(), logger
        assert points == pytest.approx(ours, rel=1e-6, nan_ok=True), logger
    assert [record.exit.exit_code for record in wandb_records(here) if record.HasField("exit")] == [0]
    assert [run.info.status for run in mlflow_runs(here)] == ["FINISHED"]
    sections = {record.column.section_name for record in swanlab_records(here) if record.HasField("column")}
    assert {"agent/writer", "agent/copier", "policy/main", "policy/other", "session"} <= sections
    attached(here, folder)


def attached(here, folder):
    """Attach the report to the run of each logger, and find its files there."""
    (start,) = (record.start for record in swanlab_records(here) if record.HasField("start"))
    (wandb_run,) = (record.run.run_id for record in wandb_records(here) if record.HasField("run"))
    (mlflow_run,) = (run.info.run_id for run in mlflow_runs(here))
    ids = ["--wandb", wandb_run, "--mlflow", mlflow_run, "--swanlab", start.id, "--trackio"]
    subprocess.run([sys.executable, str(ATTACH), str(folder), *ids], check=True)
    files = {"report.html", "view.html"}
    artifacts = {record.artifact.name: record.artifact for record in wandb_records(here) if record.HasField("artifact")}
    assert files <= {entry.path for entry in artifacts[f"report-{wandb_run}"].manifest.contents}
    assert files <= {Path(file.path).name for file in mlflow_client(here).list_artifacts(mlflow_run, "report")}
    assert files <= {Path(record.save.name).name for record in swanlab_records(here) if record.HasField("save")}
    assert mlflow_client(here).get_run(mlflow_run).info.status == "FINISHED"
    with sqlite3.connect(here / "trackio" / "team.db") as database:
        (manifest,) = database.execute("select manifest from artifact_versions").fetchone()
    assert files <= {Path(entry["path"]).name for entry in json.loads(manifest)}


@pytest.mark.parametrize(
    ("error", "code", "status", "state"),
    [(RuntimeError, 1, "FAILED", "RUN_STATE_CRASHED"), (KeyboardInterrupt, 1, "KILLED", "RUN_STATE_ABORTED")],
)
def test_a_run_that_fails_is_not_reported_as_finished(error, code, status, state, here):
    from swanlab.proto.swanlab.run.v1.run_pb2 import RunState

    with pytest.raises(error):
        log(1, error=error)
    assert [record.exit.exit_code for record in wandb_records(here) if record.HasField("exit")] == [code]
    assert [run.info.status for run in mlflow_runs(here)] == [status]
    ends = [record.finish.state for record in swanlab_records(here) if record.HasField("finish")]
    assert list(map(RunState.Name, ends)) == [state]


def test_a_run_resumes_in_its_run_of_mlflow(here, monkeypatch):
    log(1, 2)
    monkeypatch.setenv("MLFLOW_RUN_ID", mlflow_runs(here)[0].info.run_id)
    log(3, resumed=2)
    assert by_name(of_mlflow(here))["agent/solver/acts"] == {1: 1.0, 2: 2.0, 3: 3.0}


def log(*steps, resumed=None, error=None):
    """Log steps like verl's trainer."""
    with logging_to(None, resumed):
        config = {"trainer": {}, ATTEMPT: str(steps)}
        loggers = trainer_base.Tracking("team", "first", default_backend=["wandb", "mlflow", "swanlab"], config=config)
        for step in steps:
            loggers.log(data={"agent/solver/acts": step, "pass@1": math.nan}, step=step)
        if error:
            raise error
