"""The caller's side of a fork server."""

import threading

import pytest

from verl_mas.util.forks import ForkServer, ServerLost


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_says_nonsense_is_lost(tmp_path):
    (tmp_path / "nonsense.py").write_text("import os, time\nos.write(3, b'{')\ntime.sleep(99)\n")
    before = set(threading.enumerate())
    server = ForkServer("nonsense:Kind", None, env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(ServerLost):
        server.greeting.result(10)
    assert not server.usable
    for listening in set(threading.enumerate()) - before:
        listening.join()


def test_a_fork_is_refused_when_the_socket_takes_no_order(tmp_path):
    (tmp_path / "serves.py").write_text("class Kind:\n    greeting = {}\n    def __init__(self, _):\n        pass\n")
    server = ForkServer("serves:Kind", None, env={"PYTHONPATH": str(tmp_path)})
    server.greeting.result(10)
    with pytest.raises(ServerLost, match="Bad file descriptor"):
        server.fork([999_999])
