import errno
import fcntl
import os
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from verl_mas.errors import ConfigError
from verl_mas.run_folder import lock
from verl_mas.run_folder.lock import RunLock, check_lock


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(lock, "WAIT_S", 0.3)


def config(folder, val_only=False):
    return OmegaConf.create({"trainer": {"default_local_dir": str(folder), "val_only": val_only}})


def test_a_second_run_in_a_folder_is_refused_with_the_first_ones_process_host_and_start(tmp_path):
    first = RunLock(tmp_path / "new")
    with pytest.raises(ConfigError, match=f"new is in use by pid {os.getpid()}, host .+, since 20"):
        RunLock(tmp_path / "new")
    (error,) = check_lock(config(tmp_path / "new"))
    assert f"pid {os.getpid()}" in error.value and "default_local_dir" in error.fix
    assert list(check_lock(config(tmp_path / "new", val_only=True))) == []
    first.close()
    assert list(check_lock(config(tmp_path / "new"))) == []
    RunLock(tmp_path / "new").close()
    assert list(check_lock(config(tmp_path / "none"))) == [] and not (tmp_path / "none").exists()


def test_a_killed_run_leaves_no_lock_even_if_a_child_that_it_forked_lives_on(tmp_path):
    source = """
import os, sys, time
from pathlib import Path
from verl_mas.run_folder.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
    run = subprocess.Popen([sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(run.stdout.readline())
    try:
        with pytest.raises(ConfigError, match=f"pid {run.pid},"):
            RunLock(tmp_path)
        run.kill()
        run.wait()
        os.kill(child, 0)
        RunLock(tmp_path).close()
    finally:
        os.kill(child, 9)
        run.stdout.close()


def test_a_run_waits_for_the_end_of_one_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_S", 30)
    first = RunLock(tmp_path)
    threading.Timer(0.2, first.close).start()
    RunLock(tmp_path).close()


def test_a_file_system_without_locks_is_reported_and_another_error_is_raised(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    RunLock(tmp_path).close()
    assert "no locks" in caplog.text
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        RunLock(tmp_path)
