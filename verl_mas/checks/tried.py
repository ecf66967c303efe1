"""What check_workflow finds in a workflow of the user's: it plays the first row with replies of every kind."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POLICY
from verl_mas.errors import ConfigWarning
from verl_mas.gateway.program import Program
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.workflow.base import resolve
from verl_mas.workflow.task import Task
from verl_mas.workflow.tools import Tool

T = TypeVar("T")
TIME_LIMIT = 20  # seconds for all replies; one session takes milliseconds


def check_tried(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[ConfigWarning]:
    """The shipped workflows have tests. A program may need longer to start than such a session may take."""
    spec = run.mas.workflow
    if type(own := resolve(spec)).__module__.startswith("verl_mas.") or isinstance(own, Program):
        return
    agents = {name: replace(agent, policy=DEFAULT_POLICY) for name, agent in run.mas.agents.items()}
    # A configured tool is not called here.
    stated = [Tool(tool.schema) for tool in tools.values()]
    report = apart(lambda: check_workflow(partial(resolve, spec), task=task, agents=agents, tools=stated), TIME_LIMIT)
    if report is None:
        fix = "make `run` shorter without a model, such as with a server that answers at once"
        yield ConfigWarning(what, f"not tried with replies of every kind: that takes more than {TIME_LIMIT} s", fix)
        return
    named = f"{spec.path}:{spec.name}" if spec.path else spec.name
    for problem in report.causes:
        first, *rest = problem.splitlines()
        reason = rest[0].replace("rule:", "").strip() if rest else "replies may hold anything, and acts may fail"
        yield ConfigWarning(f"{what}: {first}", reason, f"correct the workflow, and see `verl-mas try {named}`")


def apart(call: Callable[[], T], seconds: float) -> T | None:
    """In a thread: workflows may block, and the caller may have an event loop. None: it did not end in time."""
    future = Future[T]()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            future.set_exception(error)

    with warnings.catch_warnings():
        # check_workflow has a sentence of its own for coroutines that nothing awaits.
        warnings.simplefilter("ignore", RuntimeWarning)
        threading.Thread(target=work, daemon=True).start()
        ended, _ = wait([future], seconds)
    return future.result() if ended else None
