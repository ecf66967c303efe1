"""Runs programs in a process of their own: `python runner.py`, which a rollout worker starts.

Standard library alone, so that any interpreter can run it. A line of JSON on stdin starts a session or cancels it, and
a line on stdout says how it ended. `python runner.py FILE NAME` only loads a function, as a check.
"""

from __future__ import annotations

import asyncio
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
MOST_CHARS = 4000  # of a traceback
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
    """Where the agents are: every client of OpenAI's or Anthropic's protocol reaches them by the name of a model."""

    base_url: str
    api_key: str = field(repr=False)

    @property
    def anthropic_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def agent(self, name: str) -> Gateway:
        """The address of one agent, whatever the name of the model: some clients know only the names of real models."""
        return Gateway(f"{self.anthropic_url}/agents/{name}/v1", self.api_key)


def as_outcome(result: Any) -> dict[str, object]:
    """What a program may return: a reward, a text (the answer), a mapping, an Outcome, or None (the last reply)."""
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
    """The outcome of a program. One that is not async gets a thread of its own: it may block."""
    if inspect.iscoroutinefunction(function):
        try:
            return as_outcome(await function(task, gateway))
        except SystemExit as error:  # it would end the loop, and every program in it
            raise RuntimeError(f"the program called sys.exit({error.code!r})") from error
    done: Future[object] = Future()
    done.set_running_or_notify_cancel()  # the end of a session does not cancel it

    def work() -> None:
        try:
            done.set_result(function(task, gateway))
        except BaseException as error:  # noqa: BLE001  # boundary: raised again in the loop
            done.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration | SystemExit) else error)

    # Not a thread of a pool: one that hangs would keep its place there.
    threading.Thread(target=work, name="program", daemon=True).start()
    return as_outcome(await asyncio.wrap_future(done))


def load(file: str, name: str) -> Function:
    """The function `name` of a file, which is loaded once."""
    module_name = "verl_mas_program_" + "".join(c if c.isalnum() else "_" for c in file)
    if module_name not in sys.modules:
        if os.path.dirname(file) not in sys.path:
            sys.path.append(os.path.dirname(file))
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    found = getattr(sys.modules[module_name], name)
    # `@verl_mas.program` makes a workflow of a function.
    function: Function = getattr(found, "function", found)
    return function


class Runner:
    def __init__(self, requests: TextIO, outcomes: TextIO):
        self._requests, self._outcomes, self._tasks = requests, outcomes, dict[int, asyncio.Task[None]]()
        self._pid = os.getpid()

    async def run(self) -> None:
        loop, parent = asyncio.get_running_loop(), os.getppid()
        # A program that forks and returns twice: the copy of this process plays no session to its end.
        os.register_at_fork(after_in_child=lambda: setattr(loop, "_run_once", end_copy))
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        # Whoever inherited the other end of stdin keeps it open: the worker is also watched.
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
        except BaseException as error:  # noqa: BLE001  # boundary: what a program raises ends its session alone
            text = json.dumps({"session": number, **failure(error)})
        if os.getpid() != self._pid:
            end_copy()
        del self._tasks[number]
        self._outcomes.write(text + "\n")
        self._outcomes.flush()


def end_copy() -> None:
    os._exit(0)


def end() -> None:
    """The worker is gone: this process ends with those that its programs started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def failure(error: BaseException) -> dict[str, object]:
    """Describe an error with the program's own frames, without those of this file, which come first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    text = "".join([*traceback.format_list(own), *traceback.format_exception_only(type(error), error)])
    return {"error": f"{type(error).__name__}: {error}"[:MOST_CHARS], "traceback": text[-MOST_CHARS:]}


def _plain(value: object) -> object:
    """Numbers and arrays of NumPy and torch."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main() -> None:
    # The folder of this file has modules of the gateway, whose names a program may use for its own.
    sys.path[0] = os.getcwd()
    if sys.argv[1:]:
        load(*sys.argv[1:])  # whether it can be
        return
    # Programs print, read and start others: none of them gets the pipes of this process.
    requests, outcomes = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    asyncio.run(Runner(requests, outcomes).run())


if __name__ == "__main__":
    main()
