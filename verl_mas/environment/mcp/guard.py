"""Runs an MCP server. When the client of the server ends, even by SIGKILL, this script ends the server and every
process that the server started.

The script needs only the standard library. Usage: python -I -S guard.py <process id of the client> <command>
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

POLL_S = 0.1
# Seconds between SIGTERM and SIGKILL for the server. They must be fewer than 2, because the client of the package mcp
# sends this process a SIGTERM, and kills it 2 s later.
GRACE_S = 1.0
PR_SET_CHILD_SUBREAPER = 36


def main(client: int, command: list[str]) -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    if sys.platform == "linux":
        # A descendant whose parent ends becomes a child of this process, even if it left the server's process group.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = os.fork()
    if server == 0:
        _become(command)
    # Close stdin and stdout here, so that only the server holds its ends of the pipes to the client. Then each side
    # notices when the other side ends.
    os.close(0)
    os.close(1)
    while (status := _reaped(server)) is None and not asked and os.getppid() == client:
        time.sleep(POLL_S)
    # The client requests the end as soon as the output of a dying server ends, shortly before the server exits. So wait
    # a moment for the exit code.
    moment = time.monotonic() + POLL_S
    while status is None and time.monotonic() < moment:
        time.sleep(0.005)
        status = _reaped(server)
    if status is not None:
        _log(f"the server ended with exit code {status}")
    else:
        _signal(-server, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while _reaped(server) is None and time.monotonic() < deadline:
            time.sleep(0.01)
    _end_all(server)


def _become(command: list[str]) -> None:
    try:
        # Use a separate group, so that the client's signals reach only this script.
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        _log(f"{command[0]}: {error.strerror}")
    finally:
        os._exit(127)


def _reaped(server: int) -> "int | None":
    """Reap the children that ended. Return the exit code of the server if it is among them, 0 if no child is left, and
    otherwise None."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if child == 0:
            return None
        if child == server:
            return os.waitstatus_to_exitcode(status)


def _end_all(server: int) -> None:
    """End every descendant. The children of a killed process become children of this process, so the loop reaches
    them, too."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline:
        for child in (-server, *_children()):
            _signal(child, signal.SIGKILL)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.005)


def _children() -> "list[int]":
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _log(message: str) -> None:
    os.write(2, f"verl-mas: {message}\n".encode(errors="replace"))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
