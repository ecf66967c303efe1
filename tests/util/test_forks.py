"""The caller's side of a fork server."""

from __future__ import annotations

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
