from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from ray import JobID

from verl_mas.trainer import watcher
from verl_mas.trainer.watcher import Lost, Watcher, called, find_lost, message, name_actors


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


def test_an_actor_of_verl_is_called_what_it_is():
    names = {
        "agent_loop_worker_3_0a1b2c3d": "agent-loop worker 3",
        "reward_loop_worker_12": "reward worker 12",
        "TransferQueueStorageUnit#0": "TransferQueue storage unit 0",
        "TransferQueueController": "TransferQueue controller",
        "TaskRunnerV1": "task runner",
        "vllm_server_0_1solver": "vllm_server_0_1solver",
    }
    assert {name: called(name) for name in names} == names


@pytest.mark.parametrize(
    ("context", "cause"),
    [
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "gone"}}, "gone"),
        ({"actor_died_error_context": {"reason": "NODE_DIED", "error_message": "its node"}}, "its node"),
        ({"oom_context": {"error_message": "out of memory"}}, "out of memory"),
        ({"creation_task_failure_context": {"formatted_exception_string": "ValueError: 3"}}, "ValueError: 3"),
        ({}, "Ray does not know it"),
        ({"actor_died_error_context": {"reason": "RAY_KILL", "error_message": "killed"}}, None),
        ({"actor_died_error_context": {"reason": "OWNER_DIED", "error_message": "its owner died"}}, None),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "INTENDED_USER_EXIT"}}, None),
    ],
)
def test_the_cause_is_rays_and_an_end_on_purpose_is_no_loss(monkeypatch, context, cause):
    from google.protobuf.json_format import ParseDict
    from ray._private import worker
    from ray.core.generated.gcs_pb2 import ActorTableData

    dead = ParseDict({"name": "reward_loop_worker_0", "pid": 7, "death_cause": context}, ActorTableData())
    answers = SimpleNamespace(
        async_get_all_actor_info=AsyncMock(return_value={"id": dead}), internal_kv_get=lambda *_: None
    )
    monkeypatch.setattr(worker.global_worker, "gcs_client", answers, raising=False)
    monkeypatch.setattr(type(worker.global_worker), "current_job_id", JobID.from_int(1))
    lost = find_lost()
    assert (lost and lost.cause) == cause


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


@pytest.fixture
def interrupted(two, tmp_path, monkeypatch, capsys):
    """Return the output when an error reaches the end of the driver, and the calls that end the process."""

    def interrupted(error):
        ends = Mock()
        monkeypatch.setattr(watcher.os, "kill", ends.kill)
        monkeypatch.setattr(watcher.os, "_exit", ends.exit)
        monkeypatch.setattr(watcher.signal, "signal", Mock())
        monkeypatch.setattr(watcher.ray, "shutdown", ends.shutdown)
        monkeypatch.setattr(watcher.sys, "excepthook", ends.otherwise)
        monkeypatch.setattr(watcher.sys, "orig_argv", ["python", "-m", "verl.trainer.main_ppo"])
        watching = Watcher()
        watching.on_run_start(two(trainer__default_local_dir=str(tmp_path)))
        if isinstance(error, SystemExit):
            with pytest.raises(KeyboardInterrupt) as stopped:
                watching.stop()
            error = stopped.value
        watcher.sys.excepthook(type(error), error, None)
        return capsys.readouterr().err, [name for name, _, _ in ends.mock_calls]

    return interrupted


def test_ctrl_c_is_one_line_after_the_end_of_ray_and_another_error_is_pythons(interrupted, tmp_path):
    printed, ends = interrupted(KeyboardInterrupt())
    resume = "run the same command again: python -m verl.trainer.main_ppo"
    assert printed == f"\nverl-mas: interrupted; saved: nothing yet, in {tmp_path}; to resume: {resume}\n"
    assert ends == ["shutdown", "kill", "exit"]
    assert interrupted(SystemExit()) == (printed.replace("interrupted", "stopped"), ends)
    assert interrupted(ValueError()) == ("", ["otherwise"])


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
    assert said("4", lost="Ray's GCS (pid 7)")[2].endswith(", or a later one: the task runner lives on for a moment")
    assert "holds 'four', which is no step" in said("four")[2]
    assert f"in {Path.cwd()}/runs/mine" in said(trainer__default_local_dir="runs/mine")[2]
