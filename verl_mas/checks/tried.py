"""What check_workflow finds in a workflow of the user's: it plays the first row with replies of every kind."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POLICY, MasConfig
from verl_mas.errors import ConfigWarning, FaultKind, MasError
from verl_mas.gateway.program import Program
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.tools import Tool

T = TypeVar("T")
TIME_LIMIT, OF_ALL_REPLIES = (
    5,
    20,
)  # seconds for a session, which takes milliseconds, and for all that check_workflow plays


def check_tried(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[ConfigWarning]:
    """The shipped workflows have tests. A program may need longer to start than such a session may take."""
    spec = run.mas.workflow
    if type(own := resolve(spec)).__module__.startswith("verl_mas.") or isinstance(own, Program):
        return
    agents = {name: replace(agent, policy=DEFAULT_POLICY) for name, agent in run.mas.agents.items()}
    # A configured tool is not called here.
    stated = [Tool(tool.schema) for tool in tools.values()]
    report = apart(
        lambda: check_workflow(partial(resolve, spec), task=task, agents=agents, tools=stated), OF_ALL_REPLIES
    )
    if report is None:
        fix = "make `run` shorter without a model, such as with a server that answers at once"
        yield ConfigWarning(what, f"not tried with replies of every kind: that takes more than {OF_ALL_REPLIES} s", fix)
        return
    named = f"{spec.path}:{spec.name}" if spec.path else spec.name
    for problem in report.causes:
        first, *rest = problem.splitlines()
        reason = rest[0].replace("rule:", "").strip() if rest else "replies may hold anything, and acts may fail"
        yield ConfigWarning(f"{what}: {first}", reason, f"correct the workflow, and see `verl-mas try {named}`")


def played(mas: MasConfig, tools: Mapping[str, Tool], client: LLMClient, task: Task) -> SessionResult | None:
    """The session; None: it did not end within the time limit."""
    settings = SessionConfig(
        agents_of(mas),
        dict.fromkeys(mas.policies, client),
        mas.branch,
        mas.reward,
        replace(mas.faults, retries=0, session_timeout_s=TIME_LIMIT),
        tools,
    )

    async def play() -> SessionResult:
        # A task that nothing awaited would be logged, with a traceback.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await run_session(partial(resolve, mas.workflow), task, settings)

    result = apart(lambda: asyncio.run(play()), TIME_LIMIT + 1)
    return None if result and any(fault.kind is FaultKind.SESSION_TIMEOUT for fault in result.faults) else result


def check_idle(run: Run, tools: Mapping[str, Tool], task: Task, acted: Set[str]) -> Iterator[ConfigWarning]:
    """Trainable agents that act only where an argument of the workflow has its default. `acted`: those that do."""
    spec, never = run.mas.workflow, resolve(run.mas.workflow).never_trained
    members = agents_of(run.mas).items()
    idle = {name for name, member in members if member.trainable and name not in never} - acted
    for argument in spec.args if idle else ():
        args, client = {name: value for name, value in spec.args.items() if name != argument}, ScriptedLLM(" a")
        with suppress(MasError):  # The argument has no default, or an agent is there by it alone.
            played(replace(run.mas, workflow=replace(spec, args=args)), tools, client, task)
        if asked := sorted(idle & {request.agent for request in client.requests}):
            value = f"mas.workflow.args.{argument}={spec.args[argument]}"
            reason = f"{' and '.join(asked)} never acts so, and is not trained; by default it does"
            yield ConfigWarning(value, reason, f"change or remove it, or set ++mas.agents.{asked[0]}.trainable=false")


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
