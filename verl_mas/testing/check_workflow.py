"""Tests a workflow with good, malformed and failing replies: `print(check_workflow(MyWorkflow))`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
import threading
import time
import traceback
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten

from verl_mas.config.schema import DEFAULT_POLICY, AgentSpec, BranchSpec, FaultSpec, PolicySpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import FaultKind, SessionFault, raise_all
from verl_mas.testing.scripted_llm import Answer, Calls, Fault, Script, ScriptedLLM, calls
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.client import Request
from verl_mas.workflow.members import members_of
from verl_mas.workflow.outcome import Outcome
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Session, SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.tool_sources import tools_of, unknown_tools
from verl_mas.workflow.tools import ToolLike

PACKAGE = Path(__file__).parents[1]
# What runs the workflow; the shipped workflows are in the package, too.
OURS = (f"{PACKAGE}/workflow/", f"{PACKAGE}/testing/", f"{PACKAGE}/errors.py", contextlib.__file__)
LIMIT_S = 3.0
BLOCKED_S, INTERVAL_S = 0.1, 0.01  # how long the event loop may stand still, and how often that is looked at
# Texts that a policy may generate, whatever its prompt.
UNREADABLE = {
    "empty replies": "",
    "malformed replies": "<answer><verify></answer> \\boxed{ ```python\n{[ \x00 �",
    "replies with every mark twice": "\\boxed{1} \\boxed{2} <answer>a</answer><answer>b</answer>",
    "very long replies": "word " * 20_000,
}

# Calls that a policy may write, by the name of the first of its tools.
WRONG_CALLS: Mapping[str, Callable[[str], Calls]] = {
    "calls of a tool that does not exist": lambda name: calls((f"{name}_2", {})),
    "calls with malformed arguments": lambda name: calls((name, '{"'), (name, "[1]")),
    "calls with wrong arguments": lambda name: calls((name, {"no_such_argument": None})),
}

Replies = Script | Mapping[str, Script]


def check_workflow(
    workflow: Callable[[], Workflow],
    replies: Replies = "fine",
    task: Task | str = "2 + 2?",
    agents: Mapping[str, AgentSpec] | None = None,
    tools: Sequence[ToolLike] = (),
) -> Report:
    """Run a workflow through good, malformed and failing replies; `print` the report.

    `replies` are the texts of the good cases, of all agents or by agent or role; each case starts with the first one.
    `agents` has settings of `mas.agents`, such as a format penalty, and names of `tools`. Agents with tools also make
    wrong calls, and calls without end. A failed act or a time-out must be recorded as a fault with its place; every
    other case must end in an Outcome that can be scored.
    """
    # A coroutine that an earlier program forgot would be reported here, if its garbage was collected meanwhile.
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        return asyncio.run(_check(_Runner(workflow, Task.of(task), replies, agents or {}, tools)))
    finally:
        if not frozen:
            gc.unfreeze()


async def _check(good: _Runner) -> Report:
    but = partial(replace, good)
    no_acts = _faults()
    no_acts.max_acts = 0  # set afterwards, as FaultSpec refuses 0
    cases = [
        await good.case("good replies", also=unrewarded),
        await good.case("4 branches", branch=BranchSpec(k=4), also=_never_committed),
        await but(task=replace(good.task, validate=True)).case("validation", also=_no_candidates),
        *[await but(replies=text).case(name) for name, text in UNREADABLE.items()],
        await but(fault=lambda _: RuntimeError("refused")).fault_case("refused acts", FaultKind.REFUSED),
        await but(latency=60.0).fault_case("time-outs", FaultKind.TIMEOUT),
        await good.case("no acts left", faults=no_acts, may_fail=True),
        await but(latency=60.0).cancelled(),
    ]
    if good.uses_tools:
        cases += [await but(wrong=call).case(name) for name, call in WRONG_CALLS.items()]
        cases.append(await but(wrong=lambda name: calls((name, {})), endless=True).case("calls without end"))
    return Report(cases)


def _faults(**changes: float) -> FaultSpec:
    settings = {"retries": 0, "backoff_s": 0.0, "act_timeout_s": LIMIT_S, "session_timeout_s": LIMIT_S, **changes}
    return FaultSpec(**settings)  # type: ignore[arg-type]


@dataclass
class _Runner:
    """Runs cases, each with a new scripted model."""

    workflow: Callable[[], Workflow]
    task: Task
    replies: Replies
    agents: Mapping[str, AgentSpec]
    tools: Sequence[ToolLike]
    latency: float = 0.0
    fault: Fault | None = None
    wrong: Callable[[str], Calls] | None = None
    endless: bool = False
    uses_tools: bool = False

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
        # Only here an act is to take too long. With short limits elsewhere, a busy machine would fail the workflow.
        result, problems = await self._run(llm, None, _faults(act_timeout_s=0.05))
        if llm.requests and not result.failed:
            problems.append(f"the {kind.value} of an act was swallowed, so its row would be missing without a record")
        problems += [f"was recorded as {fault}" for fault in result.faults if fault.kind is not kind]
        return case_of(name, result, [*problems, *_left_over(llm)])

    async def cancelled(self) -> CaseResult:
        llm = self._llm()
        session = asyncio.ensure_future(self._run(llm, None, _faults(act_timeout_s=60.0)))
        await asyncio.sleep(0.05)
        session.cancel()
        await asyncio.wait({session}, timeout=LIMIT_S)
        problems = [] if session.done() else ["does not end after cancellation"]
        return CaseResult("cancelled", [*problems, *_left_over(llm)])

    def _llm(self) -> ScriptedLLM:
        llm = ScriptedLLM if self.wrong is None else partial(_WrongCalls, self.wrong, self.endless)
        return llm(self.replies, latency=self.latency, fault=self.fault)

    async def _run(
        self, llm: ScriptedLLM, branch: BranchSpec | None, faults: FaultSpec | None
    ) -> tuple[SessionResult, list[str]]:
        """The session, and what was wrong while it ran."""
        first = self.workflow()
        members, known = members_of(first.agents, self.agents, {DEFAULT_POLICY: PolicySpec()}), tools_of(self.tools)
        raise_all(unknown_tools(members.values(), known))
        config = SessionConfig(
            members=members,
            tools=known,
            clients={DEFAULT_POLICY: llm},
            branch=branch or BranchSpec(),
            faults=faults or _faults(),
        )
        watch = Watch(type(first).run.__code__.co_filename)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            with watch.running():
                result = await run_session(self.workflow, self.task, config)
        self.uses_tools = self.uses_tools or any(request.tools for request in llm.requests)
        problems = [f"{place} blocks the event loop, and with it every session" for place in sorted(watch.places)]
        texts = [str(warning.message) for warning in raised]
        problems += dict.fromkeys(text for text in texts if "was never awaited" in text)
        problems += _unknown_sampling(llm)
        if any(reply.probe for reply in result.session.replies) and not first.probes:
            problems.append(
                "plays candidates on with team.continue_from; a check of the run needs to know: set probes = True"
            )
        return result, problems


class _WrongCalls(ScriptedLLM):
    """Calls the first tool wrongly before each reply, or instead of it."""

    def __init__(
        self, wrong: Callable[[str], Calls], endless: bool, replies: Replies, *, latency: float, fault: Fault | None
    ):
        super().__init__(replies, latency=latency, fault=fault)
        self.wrong, self.endless = wrong, endless

    def answer(self, request: Request, branch: int) -> Answer:
        if request.tools and (self.endless or request.round == 0):
            return self.wrong(request.tools[0]["function"]["name"])
        return super().answer(request, branch)


class Watch:
    """Finds code that blocks the event loop: a thread that counts how long the loop stands still. `places`: where code
    of one file was running then.

    The time is counted in turns of this thread, so that a machine that stops the whole process is not mistaken for
    code that blocks.
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
        """The innermost line of the file that the loop runs now; what runs the loop may be in the same file."""
        frame: types.FrameType | None = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  # documented
        while frame is not None and frame.f_code.co_filename not in (self.file, asyncio.base_events.__file__):
            frame = frame.f_back
        return f"{self.file}:{frame.f_lineno}" if frame and frame.f_code.co_filename == self.file else None


def _unknown_sampling(llm: ScriptedLLM) -> Iterator[str]:
    """Settings of acts that no engine knows, each agent and setting once."""
    settings = {(request.agent, name): value for request in llm.requests for name, value in request.sampling.items()}
    for (agent, name), value in sorted(settings.items(), key=lambda item: item[0]):
        for error in sampling_errors({name: value}, None, f"{agent}.act"):
            yield f"{error.value}: {error.rule}; {error.fix}"


def _left_over(llm: ScriptedLLM) -> list[str]:
    return [f"left {llm.in_flight} requests behind"] if llm.in_flight else []


def _never_committed(result: SessionResult) -> list[str]:
    # The acts of a fork that is not committed have no candidates of their own.
    replies = [reply for reply in result.session.replies if reply.among > 1]
    committed = {(reply.agent, reply.instance, reply.turn) for reply in replies if reply.committed}
    left = sorted({(reply.agent, reply.instance, reply.turn) for reply in replies} - committed)
    return [f"{agent}'s branch of turn {turn} was never committed" for agent, _, turn in left]


def _no_candidates(result: SessionResult) -> list[str]:
    more = {reply.agent for reply in result.session.replies if reply.branch > 0}
    return [f"{agent} branches in validation" for agent in sorted(more)]


@dataclass(frozen=True)
class CaseResult:
    """The result of one case; `problems` would break or spoil a training run."""

    name: str
    problems: Sequence[str]
    acts: int = 0
    malformed: int = 0
    faults: Sequence[str] = ()
    answer: str | None = None
    tool_calls: int = 0
    tool_errors: Sequence[str] = ()  # each error of a call once
    # The score of each row by agent; without the team's part where verl's reward function scores the answer.
    rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scored_by_verl: bool = False
    penalties: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, object] = field(default_factory=dict)
    # The traceback of each exception of the workflow, by type and place.
    traces: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.shown({})

    def shown(self, known: dict[str, str]) -> str:
        """`known` has the problems of earlier cases with the name of the first; those of this case are added."""
        calls = f" {self.tool_calls} tool calls," if self.tool_calls else ""
        summary = f"{self.acts} acts,{calls} {self.malformed} malformed, answer {self.answer!r:.40}"
        rewards = ", ".join(f"{agent} {_numbers(scores)}" for agent, scores in self.rewards.items())
        if self.scored_by_verl:
            rewards += "; and that of the answer, which verl's reward function gives"
        penalties = ", ".join(f"{agent} {penalty:g}" for agent, penalty in self.penalties.items() if penalty)
        details = {"rewards": rewards, "penalties": penalties, "info": str(dict(self.info)) if self.info else ""}
        lines = [f"{'ok  ' if not self.problems else 'FAIL'} {self.name}: {summary}"]
        lines += [f"       {name}: {text}" for name, text in details.items() if text]
        errors = [f"a tool call: {shorten(error, 200, placeholder=' ...')}" for error in self.tool_errors]
        firsts = [(problem, known.setdefault(problem, self.name)) for problem in (*self.problems, *self.faults)]
        problems = [problem if first == self.name else f"as in: {first}" for problem, first in firsts]
        return "\n".join([*lines, *(f"       {line}" for line in dict.fromkeys([*errors, *problems]))])


@dataclass(frozen=True)
class Report:
    cases: Sequence[CaseResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(case.problems for case in self.cases)

    @property
    def problems(self) -> list[str]:
        return [f"{case.name}: {problem}" for case in self.cases for problem in case.problems]

    def __str__(self) -> str:
        # Reversed, so that the first case in which it was raised is shown.
        traces = {name: trace for case in reversed(self.cases) for name, trace in case.traces.items()}
        known: dict[str, str] = {}
        return "\n".join([*(case.shown(known) for case in self.cases), *traces.values()])


def case_of(name: str, result: SessionResult, problems: Sequence[str]) -> CaseResult:
    session = result.session
    rewards, penalties = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for row in session.rows() if isinstance(session.outcome, Outcome) else ():
        rewards[row.first.agent].append(row.reward.score)
        penalties[row.first.agent] += row.reward.penalty
    calls = [call for reply in session.replies for call in reply.tool_calls]
    return CaseResult(
        name,
        problems,
        acts=len(session.replies),
        tool_calls=len(calls),
        tool_errors=list(dict.fromkeys(call.error for call in calls if call.error is not None)),
        malformed=sum(reply.malformed is not None for reply in session.replies),
        faults=[_described(fault) for fault in result.faults],
        answer=str(session.answer) if session.answer is not None else None,
        rewards=dict(rewards),
        scored_by_verl=bool(rewards) and needs_score(session.outcome, session.replies),
        penalties=dict(penalties),
        info=session.info,
        traces={
            f"{type(fault.__cause__)} {place}": _trace(fault) for fault in result.faults if (place := _place(fault))
        },
    )


def wrong_end(session: Session) -> Iterator[str]:
    """What is wrong with an Outcome that was returned."""
    outcome = session.outcome
    if not isinstance(outcome, Outcome):
        return
    if not session.replies:
        yield "no agent acted; is an `await` missing before an act?"
    answer: object = outcome.answer
    if inspect.iscoroutine(answer):
        answer.close()
        yield f"the answer is the coroutine {answer.__qualname__}, as `await` is missing before it"
    elif not isinstance(answer, Reply | str | None):
        yield f"the answer is {answer!r:.40}; it must be a Reply, a text or None"
    if needs_score(outcome, session.replies) and answer is None:
        yield "the Outcome has neither an answer nor a reward, so the session cannot be scored and is dropped"


def unrewarded(result: SessionResult) -> Iterator[str]:
    """The agents whose rows always have reward 0: other acts have rewards of their own, so nothing scores the team."""
    session = result.session
    outcome = session.outcome
    if not isinstance(outcome, Outcome) or outcome.reward is not None or needs_score(outcome, session.replies):
        return
    if outcome.score_answer:
        return
    agents = {reply.agent for reply in session.replies}
    rewarded = {reply.agent for reply in session.replies if (reply.reward, reply.team_reward) != (None, None)}
    for agent in sorted(agents - rewarded):
        yield (
            f"the reward of {agent} is never set: other acts have rewards, so verl's reward function is not called; "
            "return Outcome(reward=...), or Outcome(answer=..., score_answer=True)"
        )


def _described(fault: SessionFault) -> str:
    place, text = _place(fault), shorten(str(fault), 200, placeholder=" ...")
    return f"{text} ({place})" if place else text


def _place(fault: SessionFault) -> str | None:
    """File and line in the workflow of an exception that it raised."""
    frames = _own_frames(fault)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _own_frames(fault: SessionFault) -> list[traceback.FrameSummary]:
    if fault.kind is not FaultKind.WORKFLOW or fault.__cause__ is None:
        return []
    frames = traceback.extract_tb(fault.__cause__.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(OURS)]


def _trace(fault: SessionFault) -> str:
    frames = "".join(traceback.format_list(_own_frames(fault))).rstrip()
    return f"{_described(fault)}\n{frames}"


def _numbers(scores: Sequence[float]) -> str:
    return "/".join(f"{score:g}" for score in scores)
