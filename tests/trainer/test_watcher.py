import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from ray import JobID

from verl_mas.trainer import watcher
from verl_mas.trainer.watcher import Lost, find_lost, message, name_actors


@pytest.fixture
def actor(ray_here):
    import ray

    @ray.remote(num_cpus=0)
    class Waits:
        def pid(self):
            return os.getpid()

        def wait(self):
            time.sleep(60)

    def start(name=None):
        made = Waits.options(name=name).remote()
        return made, ray.get(made.pid.remote())

    return start


def found_within(seconds: float) -> Lost | None:
    until = time.monotonic() + seconds
    while (lost := find_lost()) is None and time.monotonic() < until:
        time.sleep(0.1)
    return lost


def test_only_a_process_that_nobody_ended_is_lost_and_it_is_named(actor):
    import ray

    busy, _ = actor()
    busy.wait.remote()
    ended, _ = actor()
    ray.kill(ended)
    dropped, _ = actor()
    del dropped
    worker, pid = actor()
    name_actors({"training worker {} of policy solver": [busy, worker]})
    assert found_within(1.5) is None
    os.kill(pid, signal.SIGKILL)
    lost = found_within(20)
    assert lost.name.startswith(f"training worker 1 of policy solver (pid {pid} on ")
    assert "worker process has died" in lost.cause and "common causes" not in lost.cause
    _later, pid = actor("agent_loop_worker_3_0a1b2c3d")
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    assert find_lost() == lost, "the first one broke the run"


def died(reason: str, text: str) -> dict[str, dict[str, str]]:
    return {"actor_died_error_context": {"reason": reason, "error_message": text}}


@pytest.mark.parametrize(
    ("name", "called", "context", "cause"),
    [
        ("agent_loop_worker_3_0a1b", "agent-loop worker 3", died("WORKER_DIED", "gone"), "gone"),
        ("reward_loop_worker_12", "reward worker 12", died("NODE_DIED", "its node"), "its node"),
        ("TransferQueueStorageUnit#0", "TransferQueue storage unit 0", {"oom_context": {"error_message": "m"}}, "m"),
        ("TransferQueueController", "TransferQueue controller", {}, "Ray does not know it"),
        ("main", "main", {"creation_task_failure_context": {"formatted_exception_string": "Error: 3"}}, "Error: 3"),
        ("TaskRunnerV1", None, died("RAY_KILL", "killed"), None),
        ("TaskRunnerV1", None, died("OWNER_DIED", "its owner died"), None),
        ("TaskRunnerV1", None, died("WORKER_DIED", "INTENDED_USER_EXIT"), None),
    ],
)
def test_the_cause_is_rays_and_an_end_on_purpose_is_no_loss(monkeypatch, name, called, context, cause):
    from google.protobuf.json_format import ParseDict
    from ray._private import worker
    from ray.core.generated.gcs_pb2 import ActorTableData

    dead = ParseDict({"name": name, "pid": 7, "death_cause": context}, ActorTableData())
    answers = SimpleNamespace(
        async_get_all_actor_info=AsyncMock(return_value={"id": dead}), internal_kv_get=lambda *_: None
    )
    monkeypatch.setattr(worker.global_worker, "gcs_client", answers, raising=False)
    monkeypatch.setattr(type(worker.global_worker), "current_job_id", JobID.from_int(1))
    lost = find_lost()
    assert lost == (cause and Lost(f"{called} (pid 7 on )", cause))


def test_a_raylet_that_ended_is_lost(monkeypatch):
    from ray._private import worker

    dead = [("log_monitor", SimpleNamespace(pid=5, returncode=1)), ("raylet", SimpleNamespace(pid=6, returncode=-9))]
    monkeypatch.setattr(worker, "_global_node", SimpleNamespace(dead_processes=lambda: dead))
    assert find_lost() == Lost("Ray's raylet on the node of the driver (pid 6)", "it ended with -9")


@pytest.fixture
def said(two, tmp_path, monkeypatch):
    def said(pointer=None, lost="engine 0 of policy a", **settings):
        if pointer is not None:
            checkpoint = tmp_path / "global_step_4"
            checkpoint.mkdir(exist_ok=True)
            (checkpoint / "run.json").write_text('{"files": {}}')
            (checkpoint / "data.pt").touch()
            (tmp_path / "latest_checkpointed_iteration.txt").write_text(pointer)
        monkeypatch.setattr(watcher.sys, "orig_argv", ["python", "-m", "verl.trainer.main_ppo", "data.path=a b"])
        config = two(**{"trainer__default_local_dir": str(tmp_path), **settings})
        return message(Lost(lost, "its node is gone"), config).splitlines()

    return said


PROGRAM = """
import os, threading, time, ray
from omegaconf import OmegaConf
from verl_mas.trainer import watcher
watcher.mode_of = lambda config: True
trainer = {"default_local_dir": os.getcwd(), "val_only": True, "resume_mode": "auto"}
watching, config = watcher.Watcher(), OmegaConf.create({"trainer": trainer})
watching.on_run_start(config)
watching.on_job_start(config)
ray.init(num_cpus=1, include_dashboard=False)
threading.Timer(4, os.kill, (os.getpid(), 15)).start()
ray.get(ray.remote(lambda: time.sleep(60)).remote())
"""


@pytest.mark.e2e
def test_sigterm_ends_a_run_with_what_is_saved_although_ray_has_a_handler(tmp_path):
    ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGTERM and "SIGTERM received" not in ended.stderr
    assert f"\nverl-mas: stopped; saved: nothing yet, in {tmp_path}; to resume" in ended.stderr


COMMAND = "  resume: run the same command again: python -m verl.trainer.main_ppo 'data.path=a b'"


def test_the_message_names_what_was_saved_and_the_command_that_resumes(said, tmp_path):
    lost = ["verl-mas: lost: engine 0 of policy a", "  cause:  its node is gone"]
    assert said() == [*lost, f"  saved:  nothing yet, in {tmp_path}", COMMAND]
    assert said("4") == [*lost, f"  saved:  step 4, in {tmp_path}/global_step_4", COMMAND]
    assert said("4", trainer__resume_mode="disable")[3] == COMMAND + " trainer.resume_mode=auto"
    (tmp_path / "global_step_6").mkdir()
    assert said("4")[2] == f"  saved:  step 4, in {tmp_path}/global_step_4; the save of step 6 had not ended"
    assert said("4", lost="Ray's GCS (pid 7)")[2].endswith(", or a later step: the task runner continues for a moment")
    assert "holds 'four', which is no step" in said("four")[2]
    assert f"in {Path.cwd()}/runs/mine" in said(trainer__default_local_dir="runs/mine")[2]
