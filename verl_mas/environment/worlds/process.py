"""Runs a stage in the process that `hosts.InProcess` starts. Standard input is a socket. The process receives calls of
the stage's methods on this socket and sends their results back, until the other end is closed."""

import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from verl_mas.environment.worlds.stage import Stage

WATCH_S = 1.0


def main() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection, stage = Connection(os.dup(0)), Stage()
    # Worlds must not read from the socket, and must not write to the standard output of the run.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        result, failure = None, None
        try:
            result = getattr(stage, method)(*arguments)
        except BaseException as error:  # noqa: BLE001  (the boundary: worlds of others may raise anything)
            failure = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        connection.send((result, failure))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone. While a world hangs, the main thread does not notice that the other end
    of the socket was closed."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


if __name__ == "__main__":
    main()
