"""The executable of `WarmPython`: requests a warm process, passes signals on to it and ends with its status.

It imports as little as possible: it runs once per process of a run.
"""

import json
import os
import signal
import socket
import sys

RAY_WORKER = os.path.join("ray", "_private", "workers", "setup_worker.py")


def main(address: str, python: str) -> None:
    argv, environment = warm(sys.argv[1:], dict(os.environ))
    if not argv:
        os.execv(python, [python, *sys.argv[1:]])
    request = {"executable": sys.argv[0], "argv": argv, "environment": environment, "folder": os.getcwd()}
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    process = _answer(server)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(process, number))
    status = os.waitstatus_to_exitcode(_answer(server))
    if status < 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _answer(server: socket.socket) -> int:
    answer = server.recv(32)
    if not answer:
        sys.exit("the template of this process has ended")
    return int(answer)


def warm(argv: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of the warm process. A program that would gain nothing gets no
    arguments."""
    argv = [value for i, value in enumerate(argv) if value != "-u" or any(not v.startswith("-") for v in argv[:i])]
    if argv[0].endswith(RAY_WORKER):
        # Ray's program does the same before it becomes the worker.
        given = {key: value for key, _, value in (text.partition("=") for text in argv[1:])}
        context = json.loads(given.get("--serialized-runtime-env-context") or "{}")
        for key, value in (context.get("env_vars") or {}).items():
            environment[key] = os.path.expandvars(value)
        # `cd <folder> &&`, if the run has a working_dir.
        for folder in (context.get("command_prefix") or [])[1:2]:
            os.chdir(folder)
        setup = ("--serialized-runtime-env-context=", "--language=")
        return [text for text in argv[1:] if not text.startswith(setup)], environment
    if argv[0] == "-c" or (argv[0] == "-m" and argv[1].partition(".")[0] in ("verl", "verl_mas")):
        return argv, environment
    return [], environment
