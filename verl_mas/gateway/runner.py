"""Runs programs in a process of their own: `python runner.py`, which a rollout worker starts.

This file needs only the standard library, so that any interpreter can run it. Each line of JSON on stdin starts or
cancels a session, and each line of JSON on stdout has the outcome or the error of a session. `python runner.py FILE
NAME` only loads a function, to check that the function can be loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import numbers
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, TextIO, TypeAlias

Function: TypeAlias = Callable[["ProgramTask", "Gateway"], object]
MOST_CHARS = 4000  # limit of an error message, and of a traceback
MOST_OUTCOME, MOST_PRINTED = 1 << 20, 64 << 20
WATCH_S = 1.0
PRINTED = 2


@dataclass
class ProgramTask:
    """A row of the dataset, as a program gets it."""

    messages: list[dict[str, object]]
    question: str = ""
    ground_truth: object = None
    data_source: str | None = None
    extra_info: dict[str, object] = field(default_factory=dict)
    uid: str = "task"
    session: int = 0
    step: int = 0
    validate: bool = False

    @classmethod
    def of(cls, task: object) -> ProgramTask:
        return cls(**{item.name: getattr(task, item.name) for item in fields(cls)})


@dataclass
class Gateway:
    """The endpoint of the agents. Any client of OpenAI's or Anthropic's protocol can send requests to it; the name of
    the model in a request selects the agent."""

    base_url: str
    api_key: str = field(repr=False)

    @property
    def anthropic_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def agent(self, name: str) -> Gateway:
        """Return an address at which one agent replies, whatever model a request names. Some clients accept only the
        names of real models."""
        return Gateway(f"{self.anthropic_url}/agents/{name}/v1", self.api_key)


def as_outcome(result: Any) -> dict[str, object]:
    """Convert the return value of a program to an outcome. The value is a reward, a string (the answer), a dict, an
    Outcome, or None (the last reply is the answer)."""
    if isinstance(result, dict):
        return result
    if result is None or isinstance(result, str):
        return {"answer": result}
    if isinstance(result, numbers.Real) or hasattr(result, "__float__"):
        return {"reward": float(result)}
    if hasattr(result, "reward") and hasattr(result, "answer"):
        answer = None if result.answer is None else str(result.answer)
        return {"answer": answer, "reward": result.reward, "info": dict(getattr(result, "info", {}))}
    kind = type(result).__name__
    raise TypeError(f"the program returned a {kind}; return a reward, a text, a dict, an Outcome or None")


async def played(function: Function, task: ProgramTask, gateway: Gateway) -> dict[str, object]:
    """Run a program and return its outcome. A program that is not async runs in a thread of its own, since it may
    block."""
    if inspect.iscoroutinefunction(function):
        try:
            return as_outcome(await function(task, gateway))
        except SystemExit as error:  # SystemExit would end the event loop, and every program in it
            raise RuntimeError(f"the program called sys.exit({error.code!r})") from error
    done: Future[object] = Future()
    done.set_running_or_notify_cancel()  # so that a cancelled session does not cancel this future

    def work() -> None:
        try:
            done.set_result(function(task, gateway))
        except BaseException as error:  # noqa: BLE001  # boundary: the error is raised again in the loop
            done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration | SystemExit) else error)

    # The thread is not from a pool, because a program that hangs would occupy a thread of the pool forever.
    threading.Thread(target=work, name="program", daemon=True).start()
    return as_outcome(await asyncio.wrap_future(done))


def load(file: str, name: str) -> Function:
    """Return the function `name` of a file. Each file is loaded once."""
    module_name = "verl_mas_program_" + "".join(c if c.isalnum() else "_" for c in file)
    if module_name not in sys.modules:
        if os.path.dirname(file) not in sys.path:
            sys.path.append(os.path.dirname(file))
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        with contextlib.ExitStack() as undo:
            undo.callback(sys.modules.pop, module_name)
            spec.loader.exec_module(module)
            undo.pop_all()
    found = getattr(sys.modules[module_name], name)
    # `@verl_mas.program` turns a function into a workflow class, which has the function as an attribute.
    function: Function = getattr(found, "function", found)
    return function


class Runner:
    def __init__(self, requests: TextIO, outcomes: TextIO):
        self._requests, self._outcomes, self._tasks = requests, outcomes, dict[int, asyncio.Task[None]]()
        self._pid = os.getpid()

    async def run(self) -> None:
        loop, parent = asyncio.get_running_loop(), os.getppid()
        # If a program forks and the child process also returns from the program, the child is a copy of the runner. The
        # child must exit, because it would otherwise continue the runner's sessions.
        os.register_at_fork(after_in_child=lambda: setattr(loop, "_run_once", end_copy))
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        # Another process may have inherited the write end of stdin and keep it open after the worker has ended, so the
        # parent process is watched as well.
        while os.getppid() == parent:
            await asyncio.sleep(WATCH_S)
            if os.fstat(PRINTED).st_size > MOST_PRINTED:
                os.ftruncate(PRINTED, 0)
                os.lseek(PRINTED, 0, os.SEEK_SET)
        end()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in self._requests:
            loop.call_soon_threadsafe(self._take, json.loads(line))
        end()

    def _take(self, request: dict[str, Any]) -> None:
        number: int = request["session"]
        if "cancel" not in request:
            self._tasks[number] = asyncio.ensure_future(self._session(number, request))
        elif number in self._tasks:
            self._tasks[number].cancel()

    async def _session(self, number: int, request: dict[str, Any]) -> None:
        try:
            function = load(request["file"], request["name"])
            task, gateway = ProgramTask(**request["task"]), Gateway(**request["gateway"])
            ended = {"outcome": await played(function, task, gateway)}
            text = json.dumps({"session": number, **ended}, default=_plain)
            if len(text) > MOST_OUTCOME:
                raise ValueError(f"the outcome has {len(text):,} characters; the most are {MOST_OUTCOME:,}")
        except BaseException as error:  # noqa: BLE001  # boundary: an error of a program ends only its session
            text = json.dumps({"session": number, **failure(error)})
        if os.getpid() != self._pid:
            end_copy()
        del self._tasks[number]
        self._outcomes.write(text + "\n")
        self._outcomes.flush()


def end_copy() -> None:
    os._exit(0)


def end() -> None:
    """End this process and the processes that its programs started, when the worker is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def failure(error: BaseException) -> dict[str, object]:
    """Describe an error with the frames of the program, without the frames of this file, which come first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    text = "".join([*traceback.format_list(own), *traceback.format_exception_only(type(error), error)])
    return {"error": f"{type(error).__name__}: {error}"[:MOST_CHARS], "traceback": text[-MOST_CHARS:]}


def _plain(value: object) -> object:
    """Convert numbers and arrays of NumPy and torch to plain values, and other objects to strings, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main() -> None:
    # Replace the folder of this file on `sys.path`, because modules in this folder would hide a program's modules of
    # the same name.
    sys.path[0] = os.getcwd()
    if sys.argv[1:]:
        load(*sys.argv[1:])  # an exception says why the function cannot be loaded
        return
    # Programs may print, read stdin and start child processes, so the pipes to the worker get other descriptors, which
    # children do not inherit.
    requests, outcomes = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    asyncio.run(Runner(requests, outcomes).run())


if __name__ == "__main__":
    main()
