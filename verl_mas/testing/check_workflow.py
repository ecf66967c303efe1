"""Tests a workflow with good, malformed and failing replies: `print(check_workflow(MyWorkflow))`."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import FaultKind
from verl_mas.testing.report import MACHINERY, CaseResult, Report, case_of, described, of_good, wrong_end
from verl_mas.testing.scripted_llm import Answer, Calls, Fault, Script, ScriptedLLM, calls
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.client import Request
from verl_mas.workflow.clock import work_of
from verl_mas.workflow.reply import Outcome
from verl_mas.workflow.run import run_session, session_config
from verl_mas.workflow.session import SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team
from verl_mas.workflow.tools import ToolLike

LIMIT_S, PROGRAM_S = 3.0, 30.0  # seconds per case; a program starts processes, which are slow on a busy machine
BLOCKED_S, INTERVAL_S = 0.1, 0.01  # longest block of the event loop, and interval of the checks for it
MUTABLE = list, dict, set, bytearray
LARGE, FEW_ACTS = 100, 32
# Texts that a policy may generate in reply to any prompt.
UNREADABLE = {
    "empty replies": "",
    "malformed replies": "<answer><verify></answer> \\boxed{ ```python\n{[ \x00 �",
    "replies with every mark twice": "\\boxed{1} \\boxed{2} <answer>a</answer><answer>b</answer>",
    "very long replies": "word " * 20_000,
}

# Wrong tool calls that a policy may generate, made from the name of its first tool.
WRONG_CALLS: Mapping[str, Callable[[str], Calls]] = {
    "calls of a tool that does not exist": lambda name: calls((f"{name}_2", {})),
    "calls with malformed arguments": lambda name: calls((name, '{"'), (name, "[1]")),
    "calls with wrong arguments": lambda name: calls((name, {"no_such_argument": None})),
}

Replies = Script | Mapping[str, Script]
NONE_GIVEN = "fine"


def check_workflow(
    workflow: Callable[[], Workflow],
    replies: Replies = NONE_GIVEN,
    task: Task | str = "2 + 2?",
    agents: Mapping[str, AgentSpec] | None = None,
    tools: Sequence[ToolLike] = (),
    limit_s: float | None = None,
) -> Report:
    """Run a workflow with good, malformed and failing replies; `print` the report.

    `replies` are the good replies: one script for all agents, or a mapping from agents or roles to scripts. Each case
    starts every script from its first reply. The team must be able to read the good replies. `agents` has settings of
    `mas.agents`, such as a format penalty and the names of an agent's `tools`. Agents with tools also make wrong calls
    and endless calls. A case may take `limit_s` seconds: by default 3, or 30 for a program, whose start does not count.

    A failed act or a time-out must be recorded as a fault with its place. Every other case must end in an Outcome that
    can be scored.
    """
    # Freeze existing objects. Otherwise coroutines that earlier code never awaited would be collected during this
    # check, and reported as problems of this workflow.
    frozen = gc.get_freeze_count()
    gc.freeze()
    limit_s = limit_s or (PROGRAM_S if workflow().start_s else LIMIT_S)
    try:
        return asyncio.run(_check(_Runner(workflow, Task.of(task), replies, agents or {}, tools, limit_s)))
    finally:
        if not frozen:
            gc.unfreeze()


async def _check(good: _Runner) -> Report:
    but = partial(replace, good)
    # Coroutines that are never awaited are reported as problems, so the loop need not log them.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    no_acts = good.faults()
    no_acts.max_acts = 0  # set here, because FaultSpec refuses 0
    notes: list[str] = []
    shared, once = _shared(good.workflow()), iter([RuntimeError("refused")])
    first = await good.case("good replies", also=partial(of_good, notes, good.replies != NONE_GIVEN))
    idle = [name for name in good.workflow().agents if name not in good.acted]
    cases = [
        first,
        await good.case("4 branches", branch=BranchSpec(k=4), also=_never_committed),
        await but(task=replace(good.task, validate=True)).case("validation", also=_no_candidates),
        *[await but(replies=text).case(name) for name, text in UNREADABLE.items()],
        await but(fault=lambda _: next(once, None)).fault_case("a refused act", FaultKind.REFUSED),
        await but(latency=60.0).fault_case("time-outs", FaultKind.TIMEOUT),
        await good.case("no acts left", faults=no_acts, may_fail=True),
        await but(latency=60.0).cancelled(),
    ]
    if good.uses_tools:
        # Frameworks handle wrong calls differently, and most frameworks raise an error for some kind of wrong call.
        program, few = bool(good.workflow().start_s), replace(good.faults(), max_acts=FEW_ACTS)
        wrong = [await but(wrong=call).case(name, may_fail=program) for name, call in WRONG_CALLS.items()]
        endless = but(wrong=lambda name: calls((name, {})), endless=True)
        wrong.append(await endless.case("calls without end", faults=few if program else None, may_fail=program))
        dropped = "in training such a session is dropped"
        notes += [f"{case.name}: {each.splitlines()[0]}; {dropped}" for case in wrong for each in case.faults]
        cases += wrong
    cases[0] = replace(first, problems=[*first.problems, *_changed(good, shared)])
    for name in idle:
        where = "does not act on the good replies" if name in good.acted else "acts in no case"
        notes.append(f"{name} {where}, so it was not tried: give replies with which it acts")
    return Report(cases, notes)


def _shared(workflow: Workflow) -> dict[tuple[str, str], str | int]:
    """Return the mutable values of the workflow's class and module as texts, or as sizes if they are large."""
    kind = type(workflow)
    module = sys.modules.get(kind.__module__)
    owners: dict[str, Mapping[str, object]] = {"class": vars(kind)}
    if module is not None and not module.__name__.startswith("verl_mas."):
        owners["module"] = vars(module)
    return {
        (owner, name): repr(value) if len(value) < LARGE else len(value)
        for owner, values in owners.items()
        for name, value in values.items()
        if isinstance(value, MUTABLE) and not name.startswith("__")
    }


def _changed(good: _Runner, before: Mapping[tuple[str, str], str | int]) -> Iterator[str]:
    for (owner, name), value in _shared(good.workflow()).items():
        if value != before.get((owner, name)):
            rule = "all sessions of a worker have it, and none reads what another one wrote"
            yield f"sessions change {name}, which belongs to the {owner}\n  rule: {rule}\n  fix:  set it in `run`"


@dataclass
class _Runner:
    """Runs cases, each with a new scripted model."""

    workflow: Callable[[], Workflow]
    task: Task
    replies: Replies
    agents: Mapping[str, AgentSpec]
    tools: Sequence[ToolLike]
    limit_s: float
    latency: float = 0.0
    fault: Fault | None = None
    wrong: Callable[[str], Calls] | None = None
    endless: bool = False
    uses_tools: bool = False
    acted: set[str] = field(default_factory=set)  # the agents that acted in at least one case

    def faults(self, act_timeout_s: float | None = None) -> FaultSpec:
        act_s, session_s = act_timeout_s or self.limit_s, self.limit_s
        return FaultSpec(retries=0, backoff_s=0.0, act_timeout_s=act_s, session_timeout_s=session_s)

    async def case(
        self,
        name: str,
        *,
        branch: BranchSpec | None = None,
        faults: FaultSpec | None = None,
        also: Callable[[SessionResult], Iterable[str]] = lambda _: [],
        may_fail: bool = False,
    ) -> CaseResult:
        llm = self._llm()
        result, problems = await self._run(llm, branch, faults)
        case = case_of(name, result, [*problems, *also(result), *_left_over(llm)])
        if may_fail:
            return case
        ended = [f"ended in {fault}" for fault in case.faults]
        return replace(case, problems=[*ended, *wrong_end(result.session), *case.problems], faults=())

    async def fault_case(self, name: str, kind: FaultKind) -> CaseResult:
        llm = self._llm()
        # Only this case has a short limit. In other cases, a busy machine would exceed it.
        limit_s = 0.05 if kind is FaultKind.TIMEOUT else self.limit_s
        result, problems = await self._run(llm, None, self.faults(limit_s))
        if llm.requests and not result.failed:
            problems.append(f"an act failed ({kind.value}) and its session did not: swallowed, or never awaited")
        problems += [f"was recorded as {described(fault)}" for fault in result.faults if fault.kind is not kind]
        return case_of(name, result, [*problems, *_left_over(llm)])

    async def cancelled(self) -> CaseResult:
        llm = self._llm()
        session = asyncio.ensure_future(self._run(llm, None, self.faults(60.0)))
        await asyncio.sleep(0.05)
        session.cancel()
        await asyncio.wait({session}, timeout=self.limit_s)
        problems = [] if session.done() else ["does not end after cancellation"]
        return CaseResult("cancelled", [*problems, *_left_over(llm)])

    def _llm(self) -> ScriptedLLM:
        wrong, replies = self.wrong, ScriptedLLM(self.replies)

        def calls_first(request: Request, branch: int) -> Answer:
            """Call the first tool wrongly before each reply, or, if `endless` is set, instead of each reply."""
            answered = request.round or (request.messages and request.messages[-1]["role"] == "tool")
            if wrong and request.tools and (self.endless or not answered):
                return wrong(request.tools[0]["function"]["name"])
            return replies.answer(request, branch)

        return ScriptedLLM(calls_first, latency=self.latency, fault=self.fault)

    async def _run(
        self, llm: ScriptedLLM, branch: BranchSpec | None, faults: FaultSpec | None
    ) -> tuple[SessionResult, list[str]]:
        """Run a session; return its result and the problems that occurred meanwhile."""
        first = self.workflow()
        limits = faults or self.faults()
        config = session_config(first, llm, agents=self.agents, tools=self.tools, branch=branch, faults=limits)
        watch, unawaited = Watch(type(first).run.__code__.co_filename), list[str]()
        with _never_awaited(unawaited) as watched, watch.running():
            result = await run_session(lambda: watched(self.workflow()), self.task, config)
            for error in [fault.__cause__ or fault for fault in result.faults]:
                # Release the objects of the frames. If a coroutine among them was never awaited, for example because
                # the workflow used it as a reply, Python reports it now.
                traceback.clear_frames(error.__traceback__)
                if isinstance(error, AttributeError):
                    error.obj = None
        if unawaited:
            result = replace(result, faults=[fault for fault in result.faults if "coroutine" not in fault.cause])
        self.uses_tools = self.uses_tools or any(request.tools for request in llm.requests)
        self.acted |= {request.agent for request in llm.requests}
        problems = [f"{place} blocks the event loop, and with it every session" for place in sorted(watch.places)]
        problems += [*dict.fromkeys(unawaited), *_unknown_sampling(llm)]
        return result, problems


@contextmanager
def _never_awaited(found: list[str]) -> Iterator[Callable[[Workflow], Workflow]]:
    """Collect coroutines that nothing awaits, each with the line that made it: coroutines that were never started, and
    tasks that still run when the watched workflow ends."""

    def add(coroutines: Iterable[object]) -> None:
        for coroutine in filter(inspect.iscoroutine, coroutines):
            for file, line, _ in coroutine.cr_origin or ():
                if not MACHINERY.match(file):
                    found.append(f"`await` is missing: {coroutine.__qualname__} was never awaited ({file}:{line})")

    def watched(workflow: Workflow) -> Workflow:
        run = workflow.run

        async def watched_run(task: Task, team: Team) -> Outcome:
            outcome = await run(task, team)
            add(work_of(left) for left in asyncio.all_tasks() - {asyncio.current_task()})
            return outcome

        vars(workflow)["run"] = watched_run
        return workflow

    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(1)
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            yield watched
    finally:
        sys.set_coroutine_origin_tracking_depth(depth)
    add(warning.source for warning in raised)


class Watch:
    """Finds code that blocks the event loop. A thread measures how long the loop is blocked.

    `places`: the lines of `file` that ran while the loop was blocked. Each iteration of the thread adds at most two
    intervals to the measured time, so a pause of the whole process is not mistaken for blocking code.
    """

    def __init__(self, file: str):
        self.file = file
        self.places: set[str] = set()
        self._beats = 0
        self._loop_thread = threading.get_ident()
        self._done = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        self._beat(loop.call_later)
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _beat(self, call_later: Callable[..., object]) -> None:
        self._beats += 1
        if not self._done.is_set():
            call_later(INTERVAL_S, self._beat, call_later)

    def _look(self) -> None:
        seen, stopped = -1, 0.0
        before = time.perf_counter()
        while not self._done.wait(INTERVAL_S):
            now = time.perf_counter()
            stopped = stopped + min(now - before, 2 * INTERVAL_S) if self._beats == seen else 0.0
            seen, before = self._beats, now
            if stopped > BLOCKED_S and (place := self._place()):
                self.places.add(place)

    def _place(self) -> str | None:
        """Return the innermost line of the file that the event loop runs now; None if it runs other code. Frames that
        called the loop are skipped, because the code that started the loop may be in the same file."""
        # `sys._current_frames` is documented, although its name begins with an underscore.
        frame: types.FrameType | None = sys._current_frames().get(self._loop_thread)  # noqa: SLF001
        while frame is not None and frame.f_code.co_filename not in (self.file, asyncio.base_events.__file__):
            frame = frame.f_back
        return f"{self.file}:{frame.f_lineno}" if frame and frame.f_code.co_filename == self.file else None


def _unknown_sampling(llm: ScriptedLLM) -> Iterator[str]:
    """Yield an error for each sampling setting that no engine knows, once per agent and setting."""
    settings = {(request.agent, name): value for request in llm.requests for name, value in request.sampling.items()}
    for (agent, name), value in sorted(settings.items(), key=lambda item: item[0]):
        for error in sampling_errors({name: value}, None, f"{agent}.act"):
            yield f"{error.value}: {error.rule}; {error.fix}"


def _left_over(llm: ScriptedLLM) -> list[str]:
    return [f"left {llm.in_flight} requests behind"] if llm.in_flight else []


def _never_committed(result: SessionResult) -> list[str]:
    # Skip acts with a single candidate. On a fork that is not committed, such acts are rightly not committed either.
    replies = [reply for reply in result.session.replies if reply.among > 1 and not result.failed]
    committed = {(reply.agent, reply.instance, reply.turn) for reply in replies if reply.committed}
    left = sorted({(reply.agent, reply.instance, reply.turn) for reply in replies} - committed)
    return [f"{agent}'s branch of turn {turn} was never committed" for agent, _, turn in left]


def _no_candidates(result: SessionResult) -> list[str]:
    more = {reply.agent for reply in result.session.replies if reply.branch > 0}
    return [f"{agent} branches in validation" for agent in sorted(more)]
