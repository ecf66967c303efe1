"""Plays one session before a run, on the first row and with replies of maximal length, and reports its problems."""

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from verl_mas.checks.data import FirstRows, is_prompt, sound_rows
from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.images import check_images, check_seeing, seen, tokens_of
from verl_mas.checks.refusals import Problem
from verl_mas.checks.tools import rendered_tools
from verl_mas.config.merge import SECTION
from verl_mas.config.run import View
from verl_mas.config.schema import PolicySpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import ConfigError, ConfigWarning, FaultKind, InvalidInput, SessionFault, WorkflowError
from verl_mas.planning.model_folder import Chat, chat_of
from verl_mas.util.threads import begun
from verl_mas.verl_.row import EXTRA_INFO, GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.base import resolve
from verl_mas.workflow.client import Generation, Request
from verl_mas.workflow.marks import plain_request
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.tools import Tool

T = TypeVar("T")
WORD = " a"  # one token of most tokenizers
TIME_LIMIT = 5.0  # Seconds that a session may take; most sessions take milliseconds
# Length of a short reply, as a share of the longest reply. If a prompt is too long although the replies in it are this
# short, nearly every session fails.
SHORT = 1 / 8
THINKING = 512  # A thinking model rarely reaches its answer in fewer tokens


@dataclass
class Recorder:
    """An LLMClient that records the requests that start a row, and replies with `words[agent]` words."""

    words: Mapping[str, int]
    requests: list[Request] = field(default_factory=list)

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        if request.continues is None:
            self.requests.append(request)
        return [Generation(WORD * self.words[request.agent])] * n


@dataclass(frozen=True)
class Played:
    """A played session. `result` is None if it did not end within the time limit."""

    first: FirstRows
    requests: Sequence[Request]
    result: SessionResult | None

    @property
    def scored_by_verl(self) -> bool:
        outcome = self.result.session.outcome if self.result and not self.result.failed else None
        return self.result is not None and outcome is not None and needs_score(outcome, self.result.session.replies)


def play(run: ExaminedRun, tools: Mapping[str, Tool]) -> Played | None:
    """Play a session on the first training row. Returns None if no row is on this machine."""
    first = next((rows for rows in sound_rows(run.config) if not rows.validation), None)
    if first is None:
        return None
    client = Recorder({name: longest_reply(run, agent) for name, agent in run.agents.items()})
    named = {name for agent in run.agents.values() for name in agent.spec.tools}
    stand_ins = {name: Tool({"type": "function", "function": {"name": name}}) for name in sorted(named)}
    faults = replace(run.mas.faults, retries=0, session_timeout_s=TIME_LIMIT)
    clients = dict.fromkeys(run.mas.policies, client)
    config = SessionConfig(run.agents, clients, run.mas.branch, run.mas.reward, faults, {**stand_ins, **tools})

    async def session() -> SessionResult:
        # Silence asyncio, which by default logs tasks that were never awaited, with a traceback.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await run_session(partial(resolve, run.mas.workflow), task_of(run, first), config)

    result = apart(lambda: asyncio.run(session()), TIME_LIMIT + 1 + resolve(run.mas.workflow).start_s)
    late = result is not None and any(fault.kind is FaultKind.SESSION_TIMEOUT for fault in result.faults)
    return Played(first, client.requests, None if late else result)


def longest_reply(run: ExaminedRun, agent: ResolvedAgent) -> int:
    longest = int(run.view(agent.spec.policy).value("rollout.response_length"))
    return min(longest, agent.spec.sampling.get("max_tokens") or longest)


def task_of(run: ExaminedRun, first: FirstRows) -> Task:
    """Build the task as the agent-loop worker does from a row of verl's dataset."""
    extra = first.row.get(EXTRA_INFO) or {}
    added = {RAW_PROMPT: seen(run.config, first.row), EXTRA_INFO: extra, UID: "check", SESSION_ID: 0, GLOBAL_STEPS: 0}
    kwargs = {name: extra.get(name) or {} for name in ("tools_kwargs", "interaction_kwargs")}
    row = {**first.row, **added, **kwargs, "index": extra.get("index", 0)}
    return Task.of_row(row, validate=first.validation, greedy=False)


def apart(call: Callable[[], T], seconds: float) -> T | None:
    """Call a function in a thread, because workflows may block and the caller may have an event loop. Returns None if
    the function does not end in time."""
    with warnings.catch_warnings():
        # `check_session` reports a coroutine that was never awaited.
        warnings.simplefilter("ignore", RuntimeWarning)
        future = begun(call, "check")
        ended, _ = wait([future], seconds)
    return future.result() if ended else None


# Problems of the rows, and of the session.


def check_rows(run: ExaminedRun) -> Iterator[Problem]:
    """Check the prompts of the data as verl's dataset reads them."""
    plain = View(run, "", PolicySpec())
    for first in sound_rows(run.config):
        unreadable = list(check_images(run.config, first))
        yield from unreadable
        if not unreadable:
            yield from _prompts(run, plain, first)
    yield from _thinking(run)


def _prompts(run: ExaminedRun, view: View, first: FirstRows) -> Iterator[Problem]:
    limit, data = int(view.value("rollout.prompt_length")), run.config.data
    requests = [Request(agent="", session="", turn=0, messages=seen(run.config, row)) for row in first.sample]
    problems = list(_rendered(view, requests[0], f"the first row of {first.file}"))
    yield from problems
    lengths = [] if problems else [tokens for request in requests if (tokens := prompt_tokens(view, request))]
    over = [number for number, tokens in enumerate(lengths, 1) if tokens > limit]
    if data.filter_overlong_prompts and 2 * len(over) > len(lengths):
        value = f"{len(over)} of the first {len(lengths)} rows of {first.file} have more than {limit} tokens"
        rule, fix = "data.filter_overlong_prompts leaves them out", "raise data.max_prompt_length"
        every = len(over) == first.total
        yield ConfigError(value, rule=rule, fix=fix) if every else ConfigWarning(value, rule, fix)
    elif over and not data.filter_overlong_prompts and data.truncation == "error":
        value = f"row {over[0]} of {first.file} has a prompt of {lengths[over[0] - 1]} tokens, and {limit} are allowed"
        fix = "raise data.max_prompt_length, or set data.filter_overlong_prompts=True"
        yield ConfigError(value, rule="with data.truncation=error a longer prompt ends the run", fix=fix)


def _thinking(run: ExaminedRun) -> Iterator[ConfigWarning]:
    """Check that a thinking model has enough tokens to reach its answer. See NVIDIA-NeMo/RL#2725,
    modelscope/ms-swift#4950, verl#7412 and Xuekai-Zhu/FlowRL#8."""
    given = run.config.data.get("apply_chat_template_kwargs") or {}
    longest = int(run.config.data.max_response_length)
    for view in run.learning:
        chat = chat_of(view.section("model"))
        if chat and "enable_thinking" in chat.template and given.get("enable_thinking", True) and longest < THINKING:
            value = f"data.max_response_length={longest} with {view.get('model.path')}, a model that thinks first"
            reason = "most replies are cut before the answer, so that no reward comes"
            fix = "set data.max_response_length=8192, or ++data.apply_chat_template_kwargs.enable_thinking=false"
            yield ConfigWarning(value, reason, fix)


def check_session(run: ExaminedRun, played: Played) -> Iterator[Problem]:
    what = f"workflow {run.mas.workflow.name} on the first row of {played.first.file}"
    result, requests = played.result, played.requests
    faults = result.faults if result else ()
    if result is None:
        fix = "use `await` for what takes long, as a blocked event loop stops all sessions of a worker"
        yield ConfigWarning(what, f"not checked: the session did not end within {TIME_LIMIT:g} s", fix)
    elif wrong := [fault for fault in faults if not requests or isinstance(fault.__cause__, WorkflowError)]:
        yield _failed(wrong[-1], what, played.first.file)
        return
    elif not requests:
        fix = "write `await` before each act, and see what check_workflow finds"
        yield ConfigWarning(what, "no agent acted, so nothing is trained", fix)
    elif faults and faults[-1].cause.startswith("more than "):
        reason, fix = "a session with more acts fails and is not trained on", "raise mas.faults.max_acts"
        yield ConfigWarning(f"{what}: {faults[-1].cause}", reason, f"{fix}, or lower mas.branch or mas.workflow.args")
    elif faults:
        reason = "such a session is not trained on; replies can be any text, and here they are ' a a a'"
        yield ConfigWarning(f"{what}: {faults[-1].line}", reason, "correct the workflow, and see `verl-mas try`")
    yield from _requests(run, requests, what)
    if result and not result.failed:
        yield from _rewards(run, result, what)


def _failed(fault: SessionFault, what: str, file: str) -> ConfigError:
    cause = fault.__cause__
    if isinstance(cause, InvalidInput):
        return ConfigError(f"{cause.value} (first row of {file})", rule=cause.rule, fix=cause.fix)
    fix = "give the data that this workflow reads, or correct its `run`"
    return ConfigError(f"{what}: {fault.cause}", rule="a workflow takes the rows of its data", fix=fix)


def _requests(run: ExaminedRun, requests: Sequence[Request], what: str) -> Iterator[Problem]:
    problems = list[Problem]()
    for request in {request.agent: request for request in reversed(requests)}.values():
        view, spec = run.view(run.agents[request.agent].spec.policy), run.agents[request.agent].spec
        if view.spec.remote is None:
            problems += sampling_errors(request.sampling, view.engine, f"the first act of agent {request.agent}")
            problems += _rendered(view, request, what)
            problems += rendered_tools(run, spec, request.tools) if request.tools else ()
    yield from problems
    if problems:
        return
    too_long, most = [], 0
    for name, (least, longest) in longest_prompts(run, requests).items():
        spec = run.agents[name].spec
        limit = min(int(run.config.data.max_prompt_length), spec.max_prompt_length or 1 << 30)
        if least > limit and spec.truncation == "error":
            too_long.append(f"agent {name} needs prompts of {least} tokens for short replies; the limit is {limit}")
            most = max(most, longest)
    if too_long:
        fix = f"set data.max_prompt_length={most}, or ++mas.agents.<agent>.truncation=middle"
        yield ConfigWarning("; ".join(too_long), "a session with a longer prompt fails and is not trained on", fix)


def longest_prompts(run: ExaminedRun, requests: Sequence[Request]) -> dict[str, tuple[int, int]]:
    """Map each agent to two lengths of its longest prompt in tokens: with short replies, and with maximal replies."""
    found: dict[str, tuple[int, int]] = {}
    for request in requests:
        view = run.view(run.agents[request.agent].spec.policy)
        if view.spec.remote is None and (rendered := render(view, request)):
            tokens, words = rendered[0].length(rendered[1]), 4 * rendered[1].count(4 * WORD)
            least, longest = found.get(request.agent, (0, 0))
            found[request.agent] = max(least, int(tokens - (1 - SHORT) * words)), max(longest, tokens)
    return found


def _rewards(run: ExaminedRun, result: SessionResult, what: str) -> Iterator[Problem]:
    outcome, replies = result.session.outcome, result.session.replies
    own = ", ".join(sorted({reply.agent for reply in replies if reply.reward is not None}))
    if own and not run.mas.reward.local:
        value, fix = f"mas.reward.local=0 (preset {run.mas.reward.preset})", "set ++mas.reward.local=1"
        reason = f"{what} gives acts of {own} rewards of their own, and this is their weight"
        of_team = [outcome and outcome.reward, *(reply.team_reward for reply in replies)]
        if all(reward is None for reward in of_team) and not needs_score(outcome, replies):
            yield ConfigError(value, rule=f"some reward has a weight; {reason}, and no other is given", fix=fix)
        else:
            yield ConfigWarning(value, reason, fix)
    if outcome is not None and outcome.answer is None and needs_score(outcome, replies):
        value, fix = f"{what} gives no reward and no answer", "return Outcome(reward=...) or (answer=...)"
        yield ConfigWarning(value, "verl's reward function then scores the last reply", fix)


def prompt_tokens(view: View, request: Request) -> int | None:
    """The length of a prompt; None if it cannot be counted here."""
    try:
        rendered = render(view, request)
    except ValueError:
        return None
    return rendered[0].length(rendered[1]) + tokens_of(view, request.messages) if rendered else None


def render(view: View, request: Request) -> tuple[Chat, str] | None:
    """Render the prompt of a request, or return None if there is no tokenizer. Raises ValueError if the chat template
    does not accept the messages."""
    chat = chat_of(view.section("model"))
    if chat is None:
        return None
    request, _ = plain_request(request)
    settings = {**(view.run.config.data.get("apply_chat_template_kwargs") or {}), **request.chat_template_kwargs}
    tools = {"tools": list(request.tools)} if request.tools else {}
    return chat, chat.render(request.messages, {**settings, **tools})


def _rendered(view: View, request: Request, where: str) -> Iterator[Problem]:
    """Check that the chat template accepts the messages, and that the model can read the images."""
    if blind := list(check_seeing(view, request, where)):
        yield from blind
        return
    if not is_prompt(list(request.messages)):
        value, fix = f"{where}: a prompt of {list(request.messages)!s:.120}", "correct the workflow"
        yield ConfigError(value, rule="each message has a role and a content", fix=fix)
        return
    try:
        render(view, request)
    except ValueError as error:
        value = f"the chat template of {view.get('model.path')} fails on {where}: {error}"
        fix = f"change the messages, or set {SECTION}.model.custom_chat_template"
        yield ConfigError(value, rule="prompts are rendered with the template of the policy's model", fix=fix)
