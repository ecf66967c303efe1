"""Tests a workflow with good, malformed and failing replies: `print(check_workflow(MyWorkflow))`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from verl_mas.config.schema import DEFAULT_POLICY, BranchSpec, FaultSpec, PolicySpec
from verl_mas.errors import FaultKind
from verl_mas.testing.scripted_llm import Script, ScriptedLLM
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.members import members_of
from verl_mas.workflow.session import SessionConfig, SessionResult, run_session
from verl_mas.workflow.task import Task

LIMIT_S = 3.0


@dataclass(frozen=True)
class Case:
    """The result of one case; `problems` would break or spoil a training run."""

    name: str
    problems: Sequence[str]
    acts: int = 0
    malformed: int = 0
    faults: Sequence[str] = ()
    answer: str | None = None

    def __str__(self) -> str:
        summary = f"{self.acts} acts, {self.malformed} malformed, answer {self.answer!r:.40}"
        lines = [f"{'ok  ' if not self.problems else 'FAIL'} {self.name}: {summary}"]
        return "\n".join([*lines, *(f"       {problem}" for problem in (*self.problems, *self.faults))])


@dataclass(frozen=True)
class Report:
    cases: Sequence[Case] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(case.problems for case in self.cases)

    @property
    def problems(self) -> list[str]:
        return [f"{case.name}: {problem}" for case in self.cases for problem in case.problems]

    def __str__(self) -> str:
        return "\n".join(map(str, self.cases))


def check_workflow(
    workflow: Callable[[], Workflow],
    replies: Script | Mapping[str, Script] = "fine",
    task: Task | str = "2 + 2?",
) -> Report:
    """Run a workflow through good, malformed and failing replies; `print` the report.

    `replies` are the texts of the good cases. A failed act or a time-out must be recorded as a fault with its place;
    every other case must end in an Outcome.
    """
    return asyncio.run(_check(workflow, replies, Task.of(task)))


async def _check(workflow: Callable[[], Workflow], replies: Script | Mapping[str, Script], task: Task) -> Report:
    good = _Runner(workflow, task, lambda: ScriptedLLM(replies))
    validation = Task(task.messages, task.ground_truth, task.data_source, task.extra_info, validate=True)
    cases = [
        await good.case("good replies"),
        await good.case("4 branches", branch=BranchSpec(k=4), also=_never_committed),
        await _Runner(workflow, validation, lambda: ScriptedLLM(replies)).case("validation", also=_no_candidates),
        *[
            await _Runner(workflow, task, lambda text=text: ScriptedLLM(text)).case(name)  # type: ignore[misc]
            for name, text in {
                "empty replies": "",
                "malformed replies": "<answer><verify></answer> \\boxed{ ```python\n{[ \x00 �",
                "replies with every mark twice": "\\boxed{1} \\boxed{2} <answer>a</answer><answer>b</answer>",
                "very long replies": "word " * 20_000,
            }.items()
        ],
        await _Runner(workflow, task, lambda: ScriptedLLM(replies, fault=lambda _: RuntimeError("refused"))).fault_case(
            "refused acts", FaultKind.REFUSED
        ),
        await _Runner(workflow, task, lambda: ScriptedLLM(replies, latency=60.0)).fault_case(
            "time-outs", FaultKind.TIMEOUT
        ),
        await good.case("no acts left", faults=_no_acts(), may_fail=True),
        await _Runner(workflow, task, lambda: ScriptedLLM(replies, latency=60.0)).cancelled(),
    ]
    return Report(cases)


def _faults(**changes: float) -> FaultSpec:
    settings = {"retries": 0, "backoff_s": 0.0, "act_timeout_s": 0.05, "session_timeout_s": LIMIT_S, **changes}
    return FaultSpec(**settings)  # type: ignore[arg-type]


def _no_acts() -> FaultSpec:
    faults = _faults()
    faults.max_acts = 0  # set afterwards, as FaultSpec refuses 0
    return faults


class _Runner:
    def __init__(self, workflow: Callable[[], Workflow], task: Task, llm: Callable[[], ScriptedLLM]):
        self.workflow, self.task, self.llm = workflow, task, llm()

    async def case(
        self,
        name: str,
        *,
        branch: BranchSpec | None = None,
        faults: FaultSpec | None = None,
        also: Callable[[SessionResult], list[str]] = lambda _: [],
        may_fail: bool = False,
    ) -> Case:
        result = await self._run(branch, faults)
        problems = [] if may_fail else [f"ended in {fault}" for fault in result.faults]
        return self._case(name, result, [*problems, *also(result), *self._left_over()])

    async def fault_case(self, name: str, kind: FaultKind) -> Case:
        result = await self._run(None, None)
        problems = []
        if self.llm.requests and not result.failed:
            problems.append(f"the {kind.value} of an act was swallowed, so its row would be missing without a record")
        problems += [f"was recorded as {fault}" for fault in result.faults if fault.kind is not kind]
        return self._case(name, result, [*problems, *self._left_over()])

    async def cancelled(self) -> Case:
        session = asyncio.ensure_future(self._run(None, _faults(act_timeout_s=60.0)))
        await asyncio.sleep(0.05)
        session.cancel()
        await asyncio.wait({session}, timeout=LIMIT_S)
        problems = [] if session.done() else ["does not end after cancellation"]
        return Case("cancelled", [*problems, *self._left_over()])

    async def _run(self, branch: BranchSpec | None, faults: FaultSpec | None) -> SessionResult:
        config = SessionConfig(
            members=members_of(self.workflow().agents, {}, {DEFAULT_POLICY: PolicySpec()}),
            clients={DEFAULT_POLICY: self.llm},
            branch=branch or BranchSpec(),
            faults=faults or _faults(),
        )
        return await run_session(self.workflow, self.task, config)

    def _left_over(self) -> list[str]:
        return [f"left {self.llm.in_flight} requests behind"] if self.llm.in_flight else []

    def _case(self, name: str, result: SessionResult, problems: list[str]) -> Case:
        replies = result.session.replies
        return Case(
            name,
            problems,
            acts=len(replies),
            malformed=sum(reply.malformed is not None for reply in replies),
            faults=[str(fault) for fault in result.faults],
            answer=result.session.answer,
        )


def _never_committed(result: SessionResult) -> list[str]:
    replies = result.session.replies
    committed = {(reply.agent, reply.turn) for reply in replies if reply.committed}
    left = sorted({(reply.agent, reply.turn) for reply in replies} - committed)
    return [f"{agent}'s branch of turn {turn} was never committed" for agent, turn in left]


def _no_candidates(result: SessionResult) -> list[str]:
    more = {reply.agent for reply in result.session.replies if reply.branch > 0}
    return [f"{agent} branches in validation" for agent in sorted(more)]
