"""The process of `hosts.InProcess`: runs the methods of a stage that it is sent, until the other end is closed."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection

from verl_mas.worlds.stage import Stage


def main() -> None:
    connection, stage = Connection(int(sys.argv[1])), Stage()
    # What worlds print is not for the run.
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


if __name__ == "__main__":
    main()
