"""What check_workflow finds in a workflow of the user's: it plays the first row with replies of every kind."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from verl_mas.checks.answers import WRONG, check_rewards, in_every_form
from verl_mas.checks.images import check_seeing
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POLICY, AgentSpec, MasConfig
from verl_mas.config.values import check_fields
from verl_mas.errors import ConfigWarning, FaultKind, MasError
from verl_mas.gateway.program import FunctionProgram, Program
from verl_mas.grading.forms import MARKS
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.report import Report
from verl_mas.testing.scripted_llm import Answer, Script, ScriptedLLM, calls
from verl_mas.workflow.base import Workflow, agents_of, resolve
from verl_mas.workflow.client import LLMClient, Request
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflow.tools import Tool
from verl_mas.workflows.program import ReferredProgram

T = TypeVar("T")
ASKED = re.compile(r"<(\w+)>([^<]*)</\1>")  # of codecs, in prompts
# Of calls that were answered with an error: those of which a model's arguments are no cause.
OF_TOOLS = ("it took more than", "which is neither a text nor JSON", "it was cancelled")
# Settings of an agent that are of its calls of tools.
OF_CALLS = ("tool_timeout_s", "max_tool_rounds", "max_tool_calls")
FEW = 8
# Seconds for a session, which takes milliseconds, and for all that check_workflow plays.
TIME_LIMIT, OF_ALL_REPLIES = 5, 20


def of_user(own: Workflow) -> bool:
    """The shipped workflows have tests. A program may need longer to start than such a session may take."""
    return not (type(own).__module__.startswith("verl_mas.") or isinstance(own, Program))


def check_tried(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[Problem]:
    spec = run.mas.workflow
    if not of_user(own := resolve(spec)):
        return
    agents = {name: replace(agent, policy=DEFAULT_POLICY) for name, agent in run.mas.agents.items()}
    # A configured tool is not called here.
    stated = [Tool(tool.schema) for tool in tools.values()]
    # Some teams are paid where their agents agree.
    replies: list[Script] = [
        "",
        WRONG,
        lambda request, branch: f"{request.agent} {request.turn}",
        str(task.ground_truth),
    ]
    replies += [written for _, written in in_every_form(str(task.ground_truth))]
    with suppress(MasError):  # A truth that the form has no place for.
        replies += [form.render(str(task.ground_truth))] if (form := own.answer_form(task.data_source)) else []
    replies += [as_asked(str(task.ground_truth), word) for word in (0, 1)]
    replies.append(partial(_calling, str(task.ground_truth)))

    def tried() -> tuple[Report, list[Problem]]:
        report = check_workflow(partial(resolve, spec), task=task, agents=agents, tools=stated)
        if report.causes:
            return report, []
        wrong = list(_ended(run, tools, task, what, replies))
        for each, of in ((task, what), (replace(task, validate=True), f"{what}, as one of validation")):
            rewards = partial(rewards_of, run.mas, tools, each)
            wrong = wrong or list(check_rewards(of, rewards, replies, task.ground_truth))
        return report, [*wrong, *_asked_wrongly(run, tools, task, what)]

    # What tools raise is logged by the first of each kind.
    logging.disable(logging.WARNING)
    try:
        found = apart(tried, OF_ALL_REPLIES)
    finally:
        logging.disable(logging.NOTSET)
    if found is None:
        fix = "make `run` shorter without a model, such as with a server that answers at once"
        yield ConfigWarning(what, f"not tried with replies of every kind: that takes more than {OF_ALL_REPLIES} s", fix)
        return
    named = f"{spec.path}:{spec.name}" if spec.path else spec.name
    for problem in found[0].causes:
        first, *rest = problem.splitlines()
        reason = rest[0].replace("rule:", "").strip() if rest else "replies may hold anything, and acts may fail"
        yield ConfigWarning(f"{what}: {first}", reason, f"correct the workflow, and see `verl-mas try {named}`")
    yield from found[1]


def _ended(run: Run, tools: Mapping[str, Tool], task: Task, what: str, replies: Sequence[Script]) -> Iterator[Problem]:
    """What ends a session, or an act of it, although the replies are as they should be."""
    for reply in replies:
        client = ScriptedLLM(reply)
        result = played(run.mas, tools, client, task)
        if result and result.failed and result.faults:
            value = f"{what}, with the ground truth as a reply, or with calls of its tools: {result.faults[-1].cause}"
            yield ConfigWarning(value, "such a session is not trained on", "correct the workflow")
            return
        for call in chain(*(each.tool_calls for each in result.session.replies)) if result else ():
            if call.error and any(cause in call.error for cause in OF_TOOLS):
                yield ConfigWarning(f"{what}: {call.error}", "every call of it is answered so", "correct the tool")
                return
        paid = {each.agent for each in result.session.replies if each.tool_reward} if result else set()
        if paid and not run.mas.reward.local:
            value, reason = "mas.reward.local=0", f"{what} has tools that reward calls of {', '.join(paid)}"
            yield ConfigWarning(value, f"{reason}, and this is their weight", "set ++mas.reward.local=1")
            return
        for request in client.requests:
            view = run.view(agents_of(run.mas)[request.agent].spec.policy)
            if view.spec.remote is None and (unseen := list(check_seeing(view, request, what))):
                yield from unseen
                return


def _calling(truth: str, request: Request, branch: int) -> Answer:
    """Calls of each tool, as its schema asks; then the ground truth."""
    if not request.tools or any(message["role"] == "tool" for message in request.messages):
        return truth
    return calls(*((tool["function"]["name"], _arguments(tool["function"], truth)) for tool in request.tools))


def _arguments(function: JsonObject, truth: str) -> JsonObject:
    values = {"string": truth, "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    found = (function.get("parameters") or {}).get("properties") or {}
    return {name: (one.get("enum") or [values.get(str(one.get("type")), truth)])[0] for name, one in found.items()}


def _asked_wrongly(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[ConfigWarning]:
    """What the requests of trained agents have that they should not."""
    client = ScriptedLLM(lambda request, branch: f"reply {request.turn} of {request.agent}")
    truth = WRONG if isinstance(task.ground_truth, str) and task.ground_truth else task.ground_truth
    played(run.mas, tools, client, replace(task, ground_truth=truth))
    found = dict[str, ConfigWarning]()
    for request in client.requests:
        spec = agents_of(run.mas)[request.agent].spec
        texts = [(str(message["role"]), text_of(message)) for message in request.messages]
        replies = [text for role, text in texts if role == "assistant"]
        if not spec.trainable:
            continue
        if any(WRONG in text for _, text in texts):
            value = f"{what}: the ground truth is in a prompt of {request.agent}"
            found["truth"] = ConfigWarning(value, "it is trained to copy what no task has later", "leave it out")
        if len({*replies}) < len(replies):
            value = f"{what}: a prompt of {request.agent} has a reply twice"
            fix = "give Conversation.act what is new alone; it keeps the conversation"
            found["twice"] = ConfigWarning(value, "an act of a conversation continues it", fix)
        given = {name: request.sampling.get(name) for name in ("temperature", "seed")}
        if given["seed"] is not None or (given["temperature"] == 0 and spec.sampling.get("temperature") != 0):
            value = (
                f"{what}: {request.agent} acts with {', '.join(f'{n}={v}' for n, v in given.items() if v is not None)}"
            )
            reason = "the sessions of a task are then the same, and rows of one reward have no advantage"
            found["same"] = ConfigWarning(value, reason, "leave it out")
    yield from found.values()


def check_unread(run: Run, tools: Mapping[str, Tool], task: Task) -> Iterator[ConfigWarning]:
    """Arguments of the workflow and settings of its agents, other than by default, that no session reads."""
    spec, kind = run.mas.workflow, type(resolve(run.mas.workflow))
    if issubclass(kind, Program):
        return
    default = {field.name: field.default for field in fields(cast(Any, kind))}
    unread = {f"mas.workflow.args.{name}": value for name, value in spec.args.items() if value != default.get(name)}
    answer = str(task.ground_truth)
    replies: list[Script] = ["", answer, as_asked(answer, 0), as_asked(answer, 1)]
    clients = [ScriptedLLM(reply) for reply in replies]
    with _noted(kind) as read:
        sessions = [played(run.mas, tools, client, task) for client in clients]
        for reply in replies[:2]:
            played(run.mas, tools, ScriptedLLM(reply), replace(task, validate=True))
    for name in read:
        unread.pop(f"mas.workflow.args.{name}", None)
    acted = {request.agent: bool(request.tools) for client in clients for request in client.requests}
    for role, agent in run.mas.agents.items():
        called = {acted.get(name) for name, member in agents_of(run.mas).items() if member.role == role}
        for name in OF_CALLS if called == {False} else ():
            if (value := getattr(agent, name)) != getattr(AgentSpec(), name):
                unread[f"mas.agents.{role}.{name}"] = value
    calls_at_once = run.config.actor_rollout_ref.rollout.multi_turn.get("max_parallel_calls")
    if calls_at_once not in (None, 1) and not any(acted.values()):
        unread["actor_rollout_ref.rollout.multi_turn.max_parallel_calls"] = calls_at_once
    done = [reply for session in sessions if session for reply in session.session.replies]
    if run.mas.reward.local not in (0, 1) and all(reply.reward is None and not reply.tool_reward for reply in done):
        unread["mas.reward.local"] = run.mas.reward.local
    for name, value in unread.items():
        reason = "the team then plays the same whatever it is"
        yield ConfigWarning(f"{name}={value}, which no session reads that was tried", reason, "remove it")


@contextmanager
def _noted(kind: type[Workflow]) -> Iterator[set[str]]:
    """The attributes that are read of its objects, but for the check of their types."""
    read, usual = set[str](), kind.__getattribute__

    def noting(self: Workflow, name: str) -> object:
        frame = inspect.currentframe()
        if frame and frame.f_back and frame.f_back.f_code is not check_fields.__code__:
            read.add(name)
        return usual(self, name)

    kind.__getattribute__ = noting  # type: ignore[assignment, method-assign]
    try:
        yield read
    finally:
        del kind.__getattribute__


def as_asked(truth: str, word: int, *, only: bool = False) -> Callable[[Request, int], str]:
    """The ground truth in every form, or only in those that the prompt names; and in its tags, where one of a few words
    may stand."""

    def reply(request: Request, branch: int) -> str:
        texts = "".join(map(text_of, request.messages))
        asked = dict.fromkeys(ASKED.findall(texts))
        words = {tag: [text for other, text in asked if other == tag] for tag, _ in asked}
        chosen = {tag: found[word % len(found)] if len(found) > 1 else truth for tag, found in words.items()}
        tags = [f"<{tag}>{text}</{tag}>" for tag, text in chosen.items()]
        named = [(name, written) for name, written in in_every_form(truth) if not only or MARKS[name] in texts]
        return "\n".join([*(written for _, written in named if "<" not in written), *tags]) or truth

    return reply


def rewards_of(mas: MasConfig, tools: Mapping[str, Tool], task: Task, reply: Script) -> list[float]:
    """Of a session's rows; none if it failed, or if verl scores it."""
    result = played(mas, tools, ScriptedLLM(reply), task)
    outcome = result.session.outcome if result and not result.failed else None
    if result is None or outcome is None or needs_score(outcome, result.session.replies):
        return []
    return [row.reward.score for row in result.session.rows()]


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


def check_idle(run: Run, tools: Mapping[str, Tool], task: Task, requests: Sequence[Request]) -> Iterator[ConfigWarning]:
    """Trainable agents that act only where an argument of the workflow has its default. `requests`: of a session whose
    replies cannot be read. What its prompts ask for is tried, too."""
    mas, spec, never = run.mas, run.mas.workflow, resolve(run.mas.workflow).never_trained
    members = agents_of(mas).items()
    idle = {name for name, member in members if member.trainable and name not in never}
    asked = [found.group() for request in requests for found in ASKED.finditer(text_of(request.messages[-1]))]
    acted = {request.agent for request in requests}
    for reply in [*dict.fromkeys(asked)][:FEW] if spec.args and idle - acted else ():
        acted |= _acting(mas, tools, reply, task)
    for argument in spec.args if idle - acted else ():
        args = {name: value for name, value in spec.args.items() if name != argument}
        without = replace(mas, workflow=replace(spec, args=args))
        if found := sorted((idle - acted) & _acting(without, tools, " a", task)):
            value = f"mas.workflow.args.{argument}={spec.args[argument]}"
            reason = f"then no session asks {' or '.join(found)}, which by default is asked and trained"
            yield ConfigWarning(value, reason, f"change or remove it, or set ++mas.agents.{found[0]}.trainable=false")
    for name in _unnamed(resolve(spec), idle - acted):
        value = f"agent {name} of workflow {spec.name}, which acted in no session that was tried"
        reason = "its source does not name it again, so it is never asked and never trained"
        yield ConfigWarning(
            value, reason, f"ask it, or leave it out of `agents`, or set ++mas.agents.{name}.trainable=false"
        )


def _unnamed(own: Workflow, agents: Iterable[str]) -> list[str]:
    """Of a program: agents that its file does not name beside the list of them, and that no model's name means."""
    if isinstance(own, FunctionProgram):
        named, listed = inspect.getsource(sys.modules[type(own).__module__]), 1
    elif isinstance(own, ReferredProgram) and own.function:
        named, listed = Path(own.function.rpartition(":")[0]).read_text(encoding="utf-8", errors="replace"), 0
    else:
        return []
    return [name for name in sorted(agents) if named.count(name) == listed and name not in own.models.values()]


def _acting(mas: MasConfig, tools: Mapping[str, Tool], reply: str, task: Task) -> set[str]:
    client = ScriptedLLM(reply)
    with suppress(MasError):  # Without its default an argument is needed, and an agent may be there by it alone.
        played(mas, tools, client, task)
    return {request.agent for request in client.requests}


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
