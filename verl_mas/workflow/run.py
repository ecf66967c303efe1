"""Runs sessions with retries, and runs workflows without verl, with clients of any endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from traceback import StackSummary, TracebackException, extract_tb
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeVar

from verl_mas import errors
from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec, PolicySpec, WorkflowSpec
from verl_mas.errors import FaultKind, SessionFault, WorkflowError, failures, raise_all
from verl_mas.util.loop_thread import LoopThread
from verl_mas.util.text import encodable
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.base import Workflow, resolve
from verl_mas.workflow.client import LLMClient, Message
from verl_mas.workflow.clock import Clock, ended, ends_alone, start
from verl_mas.workflow.reply import Outcome
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.session import Scorer, Session, SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team
from verl_mas.workflow.tool_loop import ToolLimits
from verl_mas.workflow.tool_sources import tools_of, unknown_tools
from verl_mas.workflow.tools import ToolLike

if TYPE_CHECKING:
    from typing import Unpack

T = TypeVar("T")
R = TypeVar("R")
Question: TypeAlias = Task | str | Sequence[Message]
AnyWorkflow: TypeAlias = str | Workflow | type[Workflow]
Clients: TypeAlias = LLMClient | Mapping[str, LLMClient]
CONCURRENCY = 64


class RunSettings(TypedDict, total=False):
    """Keyword arguments of `run`, `arun` and `run_many`. `tools` has the tools whose names are in the `tools` of
    `agents`."""

    agents: Mapping[str, AgentSpec] | None
    branch: BranchSpec | None
    faults: FaultSpec | None
    tools: Sequence[ToolLike]
    tool_limits: ToolLimits | None


async def arun(workflow: AnyWorkflow, task: Question, clients: Clients, **settings: Unpack[RunSettings]) -> Session:
    """Run a workflow on a task, without verl, and return the finished session.

    `workflow` is a registered name, a class or an object. `clients` is one client for all agents, or one client per
    policy named in `agents`. The `tools` of an agent are names of tools in the argument `tools`. Raises SessionFault if
    the last attempt fails.
    """
    return finished(await _sessions(workflow, clients, **settings)(task))


def run(workflow: AnyWorkflow, task: Question, clients: Clients, **settings: Unpack[RunSettings]) -> Session:
    """Call `arun` from code that is not async, with the same arguments, and return the finished session."""
    refuse_in_loop("verl_mas.run", "await verl_mas.arun(...)")
    return asyncio.run(arun(workflow, task, clients, **settings))


def run_many(
    workflow: AnyWorkflow,
    tasks: Iterable[Question],
    clients: Clients,
    *,
    concurrency: int = CONCURRENCY,
    ordered: bool = True,
    **settings: Unpack[RunSettings],
) -> Iterator[SessionResult]:
    """Run a workflow on many tasks concurrently, and yield their results, in order or as they finish.

    A failed session is a result as well, with its `faults`. The other arguments are those of `run`.
    """
    session = _sessions(workflow, clients, **settings)
    loop = LoopThread("run_many")
    try:
        yield from loop.iterate(many(tasks, session, concurrency, ordered=ordered))
    finally:
        loop.close()


async def many(
    items: Iterable[T], run: Callable[[T], Awaitable[R]], concurrency: int, *, ordered: bool
) -> AsyncGenerator[R, None]:
    """Yield the result of `run` for each item, in the order of the items or, if not `ordered`, as they finish.

    At most `concurrency` items run at a time, and an item is read only when it can start. Ending the iteration, early
    or by an error, cancels the running items.
    """
    if concurrency < 1:
        raise WorkflowError(f"concurrency={concurrency}", rule="it is at least 1", fix="set concurrency=16")
    waiting = enumerate(items)
    running: dict[asyncio.Future[R], int] = {}
    finished: dict[int, R] = {}
    due = 0
    try:
        while True:
            for number, item in islice(waiting, concurrency - len(running)):
                running[asyncio.ensure_future(run(item))] = number
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                finished[running.pop(task)] = task.result()
            while finished and (due in finished or not ordered):
                yield finished.pop(due if ordered else next(iter(finished)))
                due += 1
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _sessions(
    workflow: AnyWorkflow, clients: Clients, **settings: Unpack[RunSettings]
) -> Callable[[Question], Awaitable[SessionResult]]:
    """Return a function that runs one session on a question."""
    made = workflow() if isinstance(workflow, type) else workflow
    team = made if isinstance(made, Workflow) else resolve(WorkflowSpec(name=made))
    config = session_config(team, clients, **settings)
    return lambda question: run_session(lambda: team, Task.of(question), config)


def session_config(
    workflow: Workflow,
    clients: Clients,
    *,
    agents: Mapping[str, AgentSpec] | None = None,
    branch: BranchSpec | None = None,
    faults: FaultSpec | None = None,
    tools: Sequence[ToolLike] = (),
    tool_limits: ToolLimits | None = None,
) -> SessionConfig:
    """Make the session settings for a workflow that runs without verl.

    An unknown keyword argument of `run` raises TypeError here.
    """
    specs = dict(agents or {})
    used = {AgentSpec().policy, *(spec.policy for spec in specs.values())}
    served = clients if isinstance(clients, Mapping) else dict.fromkeys(used, clients)
    found = resolve_agents(workflow.agents, specs, dict.fromkeys(served, PolicySpec()))
    known = tools_of(tools)
    raise_all(unknown_tools(found.values(), known))
    return SessionConfig(
        agents=found,
        clients=served,
        branch=branch or BranchSpec(),
        faults=faults or FaultSpec(),
        tools=known,
        tool_limits=tool_limits or ToolLimits(),
    )


def finished(result: SessionResult) -> Session:
    """Return the session, or raise the last fault if it failed."""
    if result.failed:
        raise result.faults[-1]
    return result.session


def refuse_in_loop(call: str, instead: str) -> None:
    """Raise WorkflowError if the caller is in a running event loop, because `call` would block the loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WorkflowError(f"{call} inside a running event loop", rule=f"{call} blocks", fix=f"use {instead}")


async def run_session(
    workflow: Callable[[], Workflow], task: Task, config: SessionConfig, score: Scorer | None = None
) -> SessionResult:
    """Run the workflow on the task. After a failure, retry as often as `mas.faults` says.

    Raises only CancelledError and EngineLost.
    """
    faults: list[SessionFault] = []
    spec = config.faults
    while True:
        session = Session(task, config, attempt=len(faults))
        session.scorer = score
        try:
            await _attempt(workflow(), session)
        except SessionFault as fault:
            fault.traceback = traceback_of(fault)
            faults.append(fault)
            if len(faults) > spec.retries or not fault.kind.worth_retrying:
                return SessionResult(session, faults, failed=True)
            await asyncio.sleep(spec.backoff_s * 2 ** (len(faults) - 1))
        else:
            return SessionResult(session, faults)


async def _attempt(workflow: Workflow, session: Session) -> None:
    try:
        with failures():
            limit = session.config.faults.session_timeout_s
            outcome = await _within(workflow.run(session.task, Team(session)), limit)
            if not isinstance(outcome, Outcome):
                value = f"{type(workflow).__name__}.run returned {outcome!r}"
                rule = "the `run` of a workflow returns an Outcome"
                raise WorkflowError(value, rule=rule, fix="return Outcome(answer=reply) or Outcome(reward=...)")
            session.outcome = outcome
            if session.scorer is not None and needs_score(session.outcome, session.replies):
                session.score = await asyncio.wait_for(ends_alone(session.scorer(session)), limit)
    finally:
        await session.close()


async def _within(run: Awaitable[Outcome], seconds: float) -> Outcome:
    """Await `run` with a time limit. At the limit, raise a SESSION_TIMEOUT, which is not retried, unlike the TIMEOUT of
    a call inside the workflow."""
    clock = Clock(seconds)
    task = start(run, clock, session=True)
    if not await ended(task, clock):
        # A workflow that swallows the cancellation keeps running, but its acts are refused.
        raise SessionFault(FaultKind.SESSION_TIMEOUT, f"the session took more than {seconds:g} s")
    if task.cancelled():
        raise SessionFault(FaultKind.CANCELLED, "the workflow cancelled itself or one of its acts")
    return task.result()


# Maximum number of characters of a traceback. With this limit, records and log lines have the user's frames and the
# message, but not pages of library frames.
MOST_CHARS = 4000
_HERE = Path(__file__).parent
# Files whose frames are in every traceback. These frames are removed, so that the first frame is the user's code.
MACHINERY = (
    str(Path(asyncio.__file__).parent),
    contextlib.__file__,
    errors.__file__,
    *(str(_HERE / name) for name in ("clock.py", "run.py", "session.py", "team.py")),
)


def traceback_of(fault: SessionFault) -> str:
    """Format the traceback of a fault: the frames of the user, the frames of the client or library, and the exception.
    A long text is cut in the middle."""
    origin = fault.__cause__ or fault
    frames = list(extract_tb(fault.__traceback__))
    if origin is not fault:
        frames += extract_tb(origin.__traceback__)
    whole = TracebackException.from_exception(origin)
    of_users = [frame for frame in frames if not frame.filename.startswith(MACHINERY)]
    whole.stack = StackSummary.from_list(of_users or frames)
    text = encodable("".join(whole.format()).rstrip())
    if len(text) <= MOST_CHARS:
        return text
    half = MOST_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
