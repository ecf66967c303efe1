"""Workflows that run a program of any framework. The requests that the program sends to an endpoint of the run are the
acts of its agents."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, field
from importlib import import_module
from typing import Any, ClassVar, cast

from verl_mas.config.registry import nearest
from verl_mas.config.values import Positive
from verl_mas.errors import ConfigError, FaultKind, SessionFault, WorkflowError
from verl_mas.gateway.endpoints.endpoint import without_key
from verl_mas.gateway.host import host_of
from verl_mas.gateway.runner import Function, Gateway, ProgramTask, played
from verl_mas.gateway.session import GatewaySession, Rules
from verl_mas.util.loop_thread import LoopThread
from verl_mas.workflow.base import ANY_TEXT, Workflow
from verl_mas.workflow.clock import held
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import Outcome
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team

OUTCOME = ("answer", "reward", "info")


class Program(Workflow, Rules):
    """Base of workflows that run a program. A subclass implements `play`, which runs the program."""

    safe_arguments: ClassVar = {"agents": ANY_TEXT, "models": ANY_TEXT, "typed": ANY_TEXT}
    session_kind: ClassVar[type[GatewaySession]] = GatewaySession

    pass_env: list[str] = field(default_factory=list)
    """Further variables of the run's environment that the program gets, such as the key of a tool."""

    start_s: Positive = 300.0
    """Seconds that a program may take until its first request. The time limits of the session start at that request, so
    they exclude the imports of a framework."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = {f"models.{name}={agent}": agent for name, agent in self.models.items()}
        for value, agent in {**named, **{f"typed.{agent}": agent for agent in self.typed}}.items():
            if agent not in self.agents:
                rule = "models and typed name agents of the program"
                raise ConfigError(f"mas.workflow.args.{value}", rule=rule, fix=nearest(agent, list(self.agents)))

    async def play(self, task: ProgramTask, gateway: Gateway) -> JsonObject:
        """Run the program and return its outcome."""
        raise NotImplementedError

    async def run(self, task: Task, team: Team) -> Outcome:
        # Import the server only when a program runs, because command-line tools, checks and runs without programs do
        # not need it. The import takes a moment, so do it in a thread.
        served = (await asyncio.to_thread(import_module, "verl_mas.gateway.server")).served
        session = self.session_kind(team, self.agents, self)
        async with served(session) as address:
            gateway = Gateway(f"{address}/v1", session.key)
            # Remove the key from errors of the program, because errors are written to records and logs.
            with without_key(session.key):
                outcome = await self._until_decided(self.play(ProgramTask.of(task), gateway), session)
        return _outcome(outcome, team)

    async def _until_decided(self, played: Awaitable[JsonObject], session: GatewaySession) -> JsonObject:
        """Return the outcome of the program. If the session has a fault, raise the fault, even before the program
        ends."""
        playing, decided = asyncio.ensure_future(played), asyncio.ensure_future(session.decided.wait())
        reached = asyncio.ensure_future(session.reached.wait())
        waiting: set[asyncio.Future[Any]] = {playing, decided, reached}
        try:
            with held():
                started, _ = await asyncio.wait(waiting, timeout=self.start_s, return_when=asyncio.FIRST_COMPLETED)
            if not started:
                cause = f"the program sent no request in {self.start_s:g} s: it asks another address, or nothing"
                raise SessionFault(FaultKind.SESSION_TIMEOUT, cause)
            await asyncio.wait({playing, decided}, return_when=asyncio.FIRST_COMPLETED)
            if session.fault is not None:
                raise session.fault
            return playing.result()
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


class FunctionProgram(Program):
    """A function `(task, gateway)`, async or not, that `@verl_mas.program` turns into a workflow."""

    function: ClassVar[Function]

    async def play(self, task: ProgramTask, gateway: Gateway) -> JsonObject:
        function = type(self).function
        if not _importable(function):
            return await _inline(function, task, gateway)
        file = os.path.realpath(function.__code__.co_filename)
        return await host_of(sys.executable, self.pass_env).play(file, function.__name__, asdict(task), asdict(gateway))


def program(*, agents: Sequence[str]) -> Callable[[Function], type[FunctionProgram]]:
    """Make a workflow of a program, which is a function of a task and a gateway. `agents` are the names of its models.

    The function returns a reward, a string (the answer, which verl's reward function scores), an Outcome, a mapping
    like `{"reward": 1.0, "info": {"acc": 1.0}}`, or None (the last reply is the answer).
    """

    def made(function: Function) -> type[FunctionProgram]:
        own = {"agents": tuple(agents), "function": staticmethod(function), "__module__": function.__module__}
        kind = type(function.__name__, (FunctionProgram,), {**own, "__doc__": function.__doc__})
        return cast(type[FunctionProgram], kind)

    return made


def _importable(function: Function) -> bool:
    """Whether another process can load the function from its file. A function that is defined in a notebook, in a
    script or inside another function cannot be loaded."""
    named = function.__module__ != "__main__" and function.__qualname__ == function.__name__
    return named and os.path.isfile(function.__code__.co_filename)


async def _inline(function: Function, task: ProgramTask, gateway: Gateway) -> JsonObject:
    """Run the function in its own event loop. If it blocked the loop that serves its requests, it would wait forever
    for the replies."""
    loop = LoopThread("program")
    try:
        return await loop.aresult(played(function, task, gateway))
    finally:
        # Do not wait for a program that blocks.
        threading.Thread(target=loop.close, daemon=True).start()


def _outcome(given: JsonObject, team: Team) -> Outcome:
    if unknown := sorted(given.keys() - set(OUTCOME)):
        rule, fix = f"an outcome has {', '.join(OUTCOME)}", nearest(unknown[0], OUTCOME)
        raise WorkflowError(f"the program returned {unknown[0]!r:.80}", rule=rule, fix=fix)
    answer, reward = given.get("answer"), given.get("reward")
    if answer is None and reward is None:
        answer = next(reversed(team.replies), None)
    if isinstance(answer, str):
        # If the answer equals the text of a reply, use the reply, so that its tokens are scored as they were sampled.
        answer = next((reply for reply in reversed(team.replies) if reply.text == answer), answer)
    return Outcome(answer=answer, reward=reward, info=given.get("info") or {})
