import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

import pytest
import ray
from omegaconf import OmegaConf

from verl_mas.config import cluster
from verl_mas.engines.platform import ray_workers

WORKER = "import os, sys; print('by itself:', sys.argv[1], os.environ['MARK'])"


@pytest.fixture
def hand_over(tmp_path):
    """Start a worker as Ray does. Return its output and the data that arrives at the socket. `answers`: whether the
    server replies that it has forked the worker."""

    def start(answers):
        script = tmp_path / "worker.py"
        script.write_text(WORKER)
        arrived = []

        def fork(listener):
            with listener, listener.accept()[0] as connection:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
                arrived.append(json.loads(os.pread(descriptors[0], 1 << 20, 0)))
                arrived.extend(os.fstat(each).st_ino for each in descriptors[1:])
                for descriptor in descriptors:
                    os.close(descriptor)
                connection.send(b"1" * answers)

        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address = os.path.join(folder, "socket")
            listener.bind(address)
            listener.listen()
            server = threading.Thread(target=fork, args=(listener,))
            server.start()
            command = [sys.executable, "-IS", ray_workers.HAND_OVER, address, script, "argument"]
            environment = {**os.environ, "MARK": "mark"}
            done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
            server.join()
        return done.stdout, arrived

    return start


def test_a_worker_is_forked_with_its_command_environment_folder_and_output(hand_over, tmp_path):
    output, ((command, environment, folder), *streams) = hand_over(answers=True)
    assert command == [str(tmp_path / "worker.py"), "argument"] and folder == str(tmp_path)
    assert environment["MARK"] == "mark" and len(set(streams)) == 3 and output == ""


def test_a_worker_that_is_not_forked_starts_by_itself(hand_over):
    assert hand_over(answers=False)[0] == "by itself: argument mark\n"


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

    monkeypatch.setattr(subprocess, "Popen", lambda command, env, **options: started.append(env))
    given = {"env_vars": {"A": "b"}, **runtime_env}
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {"runtime_env": given}}})
    ray_workers.fork_workers(config)
    assert ("hand_over.py" in str(config.ray_kwargs.ray_init.runtime_env.get("py_executable"))) is forked
    assert [environment["A"] for environment in started] == ["b"] * forked
