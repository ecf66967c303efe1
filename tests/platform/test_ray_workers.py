import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf

from verl_mas.config import cluster
from verl_mas.platform import ray_workers
from verl_mas.util.forks import Refused

WORKER = "import os, sys; print('by itself:', sys.argv[1], os.environ['MARK'])"


class Server:
    """A fork server that keeps what a fork would get."""

    def __init__(self, refusal: Exception | None = None):
        self.greeting, self.workers = Future(), []
        if refusal:
            self.greeting.set_exception(refusal)
        else:
            self.greeting.set_result({})

    def fork(self, descriptors):
        self.workers.append([os.fstat(each).st_ino for each in descriptors[1:]])
        self.workers[-1].append(json.loads(os.pread(descriptors[0], 1 << 20, 0)))


@pytest.fixture
def hand_over(tmp_path):
    """Start a worker as Ray does: its output. The driver has the fork server."""

    def start(server):
        script = tmp_path / "worker.py"
        script.write_text(WORKER)
        folder = tempfile.TemporaryDirectory()
        address = os.path.join(folder.name, "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        threading.Thread(target=ray_workers.relay, args=(listener, server, folder), daemon=True).start()
        command = [sys.executable, "-IS", ray_workers.HAND_OVER, address, script, "argument"]
        environment = {**os.environ, "MARK": "mark"}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)

    return start


def test_a_worker_is_forked_with_its_command_environment_folder_and_output(hand_over, tmp_path):
    server = Server()
    assert hand_over(server).stdout == ""
    ((stdin, stdout, stderr, (command, environment, folder)),) = server.workers
    assert command == [str(tmp_path / "worker.py"), "argument"] and folder == str(tmp_path)
    assert environment["MARK"] == "mark" and len({stdin, stdout, stderr}) == 3


def test_a_worker_that_cannot_be_forked_starts_by_itself_and_the_log_says_why(hand_over, caplog):
    assert hand_over(Server(Refused("an import started a thread"))).stdout == "by itself: argument mark\n"
    assert "imports verl for itself" in caplog.text and "an import started a thread" in caplog.text


@pytest.mark.parametrize(
    ("address", "runtime_env", "version", "forked"),
    [
        (None, {"py_executable": None}, "2.60.1", True),
        ("10.0.0.1:6379", {}, "2.60.1", False),
        (None, {"pip": ["pandas"]}, "2.60.1", False),
        (None, {}, "2.61.0", False),
    ],
)
def test_workers_of_its_own_cluster_are_forked(monkeypatch, address, runtime_env, version, forked):
    started = []
    monkeypatch.setattr(cluster, "address", lambda config: address)
    monkeypatch.setattr(ray, "__version__", version)
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "1")

    def server(kind, modules, env):
        started.append(env)
        return SimpleNamespace(greeting=Future(), close=SimpleNamespace())

    monkeypatch.setattr(ray_workers, "ForkServer", server)
    given = {"env_vars": {"A": "b"}, **runtime_env}
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {"runtime_env": given}}})
    ray_workers.fork_workers(config)
    assert ("hand_over.py" in str(config.ray_kwargs.ray_init.runtime_env.get("py_executable"))) is forked
    assert [environment["A"] for environment in started] == ["b"] * forked
