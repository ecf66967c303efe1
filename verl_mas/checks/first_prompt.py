"""The first prompt of a session on a dataset row: the workflow builds it, the policy's chat template renders it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from omegaconf import DictConfig

from verl_mas.checks.verl.chat_template import ChatTemplate
from verl_mas.checks.verl.data_files import FirstRow, sound_rows
from verl_mas.checks.verl.model_folder import local_folder
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run, View
from verl_mas.config.schema import AgentSpec, FaultSpec, MasConfig, PolicySpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import ConfigError, ConfigWarning, FaultKind, InvalidInput, SessionFault
from verl_mas.registry import nearest
from verl_mas.row import EXTRA_INFO, GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.verl_.types import Fields
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Generation, LLMClient, Message, Request
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.tools import Tool

# Whether a policy that is served here sees its tools in its prompts, and whether verl finds its calls.


FORMAT = f"{SECTION}.rollout.multi_turn.format"
# verl's formats of calls -> what their parser looks for, as it stands in a chat template that asks for such calls.
FORMATS = {
    "hermes": r"<tool_call>\s*\{",
    "gpt-oss": r"to=functions\.",
    "qwen3_coder": r"<tool_call>\s*<function=",
    "glm": r"<arg_key>",
    "seed": r"<seed:tool_call>",
    "minimax": r"<minimax:tool_call>",
    "kimi": r"<\|tool_call_begin\|>",
    "deepseek_v4": r"DSML",
    "gemma4": r"<\|tool_call>call:",
}


def check_tool_prompts(run: Run, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """For the tools that agents name."""
    for member in agents_of(run.mas).values():
        schemas = [tools[name].schema for name in member.spec.tools if name in tools]
        if schemas and run.mas.policies[member.spec.policy].remote is None:
            yield from rendered_tools(run, member.spec, schemas)


def rendered_tools(run: Run, agent: AgentSpec, schemas: Sequence[JsonObject]) -> Iterator[Problem]:
    value = run.view(agent.policy).get
    parser = str(value("rollout.multi_turn.format"))
    if parser not in _known(parser):
        rule = "it is the format of calls that verl finds in the replies of a model"
        yield ConfigError(f"{FORMAT}={parser}", rule=rule, fix=nearest(parser, list(FORMATS)))
        return
    folder = local_folder(str(value("model.tokenizer_path") or value("model.path")))
    chat = ChatTemplate.of(folder, value("model.custom_chat_template")) if folder else None
    if chat is None:
        return  # check_model says what is missing.
    settings = {**(run.config.data.get("apply_chat_template_kwargs") or {}), **agent.chat_template_kwargs}
    try:
        without, given = (chat.render(PLAIN, {**settings, "tools": tools}) for tools in (None, list(schemas)))
        whole = chat.render([*PLAIN, *_called(schemas[0])], {**settings, "tools": list(schemas)})
    except ValueError as error:
        reason = "an act that calls a tool fails if its template cannot render the call and its result"
        fix = f"set {SECTION}.model.custom_chat_template to a template that takes tools"
        yield ConfigWarning(f"the chat template of {folder} with a call of a tool: {error}", reason=reason, fix=fix)
        return
    if without == given:
        yield ConfigWarning(
            f"the chat template of {folder} renders the same prompt with and without tools",
            reason="the model does not see which tools it has",
            fix=f"describe them in the prompt, or set {SECTION}.model.custom_chat_template to a template that takes "
            "tools",
        )
    elif parser in FORMATS and not re.search(FORMATS[parser], whole):
        fitting = [name for name, pattern in FORMATS.items() if re.search(pattern, whole)]
        reason = f"a call in this template has nothing that {parser} looks for, so no call would be found"
        fix = f"set {FORMAT}={' or '.join(fitting)}" if fitting else "use a model whose calls verl can read"
        yield ConfigWarning(f"{FORMAT}={parser} with the chat template of {folder}", reason=reason, fix=fix)


PLAIN: Sequence[Message] = ({"role": "user", "content": "?"},)


def _called(schema: JsonObject) -> list[Message]:
    function = {"name": schema["function"]["name"], "arguments": {}}
    calls = [{"type": "function", "id": "call00000", "function": function}]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "!", "name": function["name"], "tool_call_id": "call00000"},
    ]


def _known(parser: str) -> Sequence[str]:
    """The formats of verl; those of its registry, which plugins may add to, if it is none that we know."""
    if parser in FORMATS:
        return list(FORMATS)
    from verl.experimental.agent_loop.tool_parser import ToolParser

    return list(ToolParser._registry)  # noqa: SLF001


TIME_LIMIT = 5  # seconds for the workflow to reach its first act


class Recorder:
    """An LLMClient that keeps the first request and serves none."""

    def __init__(self) -> None:
        self.request: Request | None = None

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        self.request = self.request or request
        raise SessionFault(FaultKind.LIMIT, "the check ends at the first act")


def check_first_prompts(run: Run, tools: Mapping[str, Tool] | None = None) -> Iterator[Problem]:
    """Of a run without a team, the prompt is the row's. `tools`: those that the configuration has."""
    for first in sound_rows(run.config):
        yield from _check(run, tools or {}, first)


def _check(run: Run, tools: Mapping[str, Tool], first: FirstRow) -> Iterator[Problem]:
    file, row = first.file, first.row
    if has_media(run.config, row):
        return
    messages = row[str(run.config.data.prompt_key)]
    base, plain = View(run, "", PolicySpec()), Request(agent="", session="", turn=0, messages=messages)
    of_row = list(_rendered(base, plain, file, "data.truncation", filtered=True))
    if of_row and run.config.data.filter_overlong_prompts:
        return  # verl leaves this row out.
    if run.mode is None:
        yield from of_row
        return
    recorder = Recorder()
    result = played(run.mas, tools, recorder, task_of(run.config, first))
    if recorder.request is not None:
        agent = recorder.request.agent
        view = run.view(agents_of(run.mas)[agent].spec.policy)
        if view.spec.remote is None:
            engine = str(view.get("rollout.name"))
            yield from sampling_errors(recorder.request.sampling, engine, f"the first act of agent {agent}")
            truncation = f"mas.agents.{agent}.truncation"
            yield from _rendered(view, recorder.request, file, truncation, filtered=bool(of_row))
            if recorder.request.tools:
                yield from rendered_tools(run, agents_of(run.mas)[agent].spec, recorder.request.tools)
    elif result is None:
        reason = f"not checked: it reached no act within {TIME_LIMIT} s"
        fix = "use `await` for what takes long, as a blocked event loop stops all sessions of a worker"
        yield ConfigWarning(f"workflow {run.mas.workflow.name} on the first row of {file}", reason=reason, fix=fix)
    elif result.faults:
        yield _failed(run.mas, result.faults[-1], file)
    else:
        reason = "no agent acted, so nothing is trained"
        fix = "write `await` before each act, and see what check_workflow finds"
        yield ConfigWarning(f"workflow {run.mas.workflow.name} on the first row of {file}", reason=reason, fix=fix)


def has_media(config: DictConfig, row: Fields) -> bool:
    """verl puts images and sounds into the messages, and their processor counts the tokens."""
    return any(row.get(str(config.data[key])) for key in ("image_key", "video_key", "audio_key"))


def task_of(config: DictConfig, first: FirstRow) -> Task:
    """As the agent-loop worker builds it from what verl's dataset returns."""
    row, messages = first.row, first.row[str(config.data.prompt_key)]
    extra = row.get(EXTRA_INFO) or {}
    added = {RAW_PROMPT: messages, EXTRA_INFO: extra, UID: "check", SESSION_ID: 0, GLOBAL_STEPS: 0}
    kwargs = {name: extra.get(name) or {} for name in ("tools_kwargs", "interaction_kwargs")}
    return Task.of_row(
        {**row, **added, **kwargs, "index": extra.get("index", 0)}, validate=first.validation, greedy=False
    )


def played(mas: MasConfig, tools: Mapping[str, Tool], client: LLMClient, task: Task) -> SessionResult | None:
    """The session, in a thread of its own: a workflow may block, and the caller may have an event loop. None: it did
    not end within the time limit."""
    members = agents_of(mas)
    # In place of a tool whose class alone has its schema.
    unread = {
        name: Tool({"type": "function", "function": {"name": name}}) for m in members.values() for name in m.spec.tools
    }
    settings = SessionConfig(
        members,
        dict.fromkeys(mas.policies, client),
        mas.branch,
        mas.reward,
        FaultSpec(retries=0, session_timeout_s=TIME_LIMIT),
        {**unread, **{name: tools[name] for name in unread if name in tools}},
    )
    results: list[SessionResult] = []

    def run() -> None:
        results.append(asyncio.run(run_session(partial(resolve, mas.workflow), task, settings)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT + 1)
    return results[0] if results and not _timed_out(results[0]) else None


def _timed_out(result: SessionResult) -> bool:
    return bool(result.faults) and result.faults[-1].kind is FaultKind.SESSION_TIMEOUT


def _failed(mas: MasConfig, fault: SessionFault, file: str) -> ConfigError:
    cause = fault.__cause__
    if isinstance(cause, InvalidInput):
        return ConfigError(f"{cause.value} (first row of {file})", rule=cause.rule, fix=cause.fix)
    value = f"workflow {mas.workflow.name} on the first row of {file}: {fault.cause}"
    rule = "a workflow takes the rows of its data"
    return ConfigError(value, rule=rule, fix="give the data that this workflow reads, or correct its `run`")


def _rendered(view: View, request: Request, file: str, truncation: str, *, filtered: bool) -> Iterator[Problem]:
    """Whether the chat template takes the messages, and their length, where the tokenizer's files are here.

    `filtered`: verl can leave the row out; it counts the row's own messages, without what a workflow adds.
    """
    longest = int(view.get("rollout.prompt_length"))
    limit = min(longest, request.max_prompt_length or longest)
    try:
        length = tokens_of(view, request, limit)
    except ValueError as error:
        yield ConfigError(
            f"the chat template of policy {view.name} fails at the first prompt on the first row of {file}: {error}",
            rule="prompts are rendered with the chat template of the policy's model",
            fix=f"change the messages, or set {SECTION}.model.custom_chat_template",
        )
        return
    if length is not None and length > limit:
        yield _too_long(request, file, length, limit, truncation, filtered=filtered)


def tokens_of(view: View, request: Request, limit: int) -> int | None:
    """The length of a prompt; None if it is surely within the limit, or cannot be counted here, as check_model says.
    Raises ValueError where the chat template does not take the messages."""
    folder = local_folder(str(view.get("model.tokenizer_path") or view.get("model.path")))
    chat = ChatTemplate.of(folder, view.get("model.custom_chat_template")) if folder else None
    if chat is None:
        return None
    settings = {
        str(name): value for name, value in (view.run.config.data.get("apply_chat_template_kwargs") or {}).items()
    }
    tools = {"tools": list(request.tools)} if request.tools else {}
    return chat.length(chat.render(request.messages, {**settings, **request.chat_template_kwargs, **tools}), limit)


def _too_long(request: Request, file: str, length: int, limit: int, truncation: str, *, filtered: bool) -> Problem:
    value = f"the first prompt on the first row of {file} has {length} tokens, and {limit} are allowed"
    if request.truncation == "error":
        return ConfigError(
            value,
            rule=f"with {truncation}=error a longer prompt fails",
            fix="raise data.max_prompt_length"
            + (", or set data.filter_overlong_prompts=True" if filtered else f", or set ++{truncation}=middle"),
        )
    return ConfigWarning(value, reason=f"it is cut: {truncation}={request.truncation}", fix="raise the limit")
