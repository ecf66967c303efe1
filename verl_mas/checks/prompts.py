"""The prompts of a session on a dataset row: the workflow builds them, the policy's chat template renders them, and the
longest ones hold what agents wrote before."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.images import check_images, check_seeing, seen, tokens_of
from verl_mas.checks.tools import rendered_tools
from verl_mas.checks.tried import ASKED, TIME_LIMIT, check_idle, check_tried, check_unread, played
from verl_mas.checks.verl.files import check_scored
from verl_mas.checks.verl.model_folder import ChatTemplate, vision_of
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.rows import ROLES, FirstRow, is_prompt, other_rows, sound_rows
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run, View
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import ConfigError, ConfigWarning, InvalidInput, SessionFault, WorkflowError
from verl_mas.gateway.program import Program
from verl_mas.registry import nearest
from verl_mas.row import AGENT_NAME, EXTRA_INFO, GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Generation, Message, Request
from verl_mas.workflow.marks import plain_request
from verl_mas.workflow.members import Member
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.session import SessionResult
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflow.tools import Tool

# Arguments of a tokenizer's apply_chat_template, which a template need not read.
OF_TOKENIZERS = (
    "add_generation_prompt continue_final_message documents max_length padding tokenizer_kwargs truncation".split()
)

TIME_OF_OTHERS = 0.5  # Seconds for the sessions of other rows


class Recorder:
    """An LLMClient that keeps the requests that start a row, and replies with so many tokens."""

    def __init__(self, tokens: Mapping[str, int]):
        self.tokens = tokens
        self.requests: list[Request] = []

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        if request.continues is None:
            self.requests.append(request)
        return [Generation(WORD * self.tokens[request.agent])] * n


def check_prompts(run: Run, tools: Mapping[str, Tool] | None = None) -> Iterator[Problem]:
    """Of a run without a team, the prompt is the row's. `tools`: those that the configuration has."""
    yield from _unread_settings(run)
    for first in sound_rows(run.config):
        if unreadable := list(check_images(run.config, first)):
            yield from unreadable
        elif not _has_media(run.config, first):
            yield from _check(run, tools or {}, first)
        elif vision_of(run.config[SECTION].model) == {}:
            value = f"rows of {first.file} have videos or sounds"
            rule = f"the model reads them, and {run.config[SECTION].model.path} is one of text"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.model.path, or leave the column out")


def _unread_settings(run: Run) -> Iterator[ConfigWarning]:
    """Of chat templates: names that they never read."""
    key = "apply_chat_template_kwargs"
    places = {f"data.{key}": (View(run, "", PolicySpec()), run.config.data.get(key) or {})}
    # A role whose instances all have policies of their own may name none that exists.
    for name, spec in run.mas.agents.items():
        if spec.policy in run.mas.policies:
            places[f"mas.agents.{name}.chat_template_kwargs"] = run.view(spec.policy), spec.chat_template_kwargs
    for place, (view, given) in places.items():
        chat = ChatTemplate.of_model(view.section("model")) if given and not view.spec.remote else None
        known = dict.fromkeys([*chat.variables(), *OF_TOKENIZERS]) if chat else given
        for name in (str(name) for name in given if name not in known):
            fix = f"remove it, or correct it; {nearest(name, list(known))}"
            yield ConfigWarning(f"{place}.{name}", reason="the chat template of the model reads no such name", fix=fix)


def _check(run: Run, tools: Mapping[str, Tool], first: FirstRow) -> Iterator[Problem]:
    messages = seen(run.config, first.row)
    base, plain = View(run, "", PolicySpec()), Request(agent="", session="", turn=0, messages=messages)
    of_row = list(_rendered(base, plain, first.file, "data.truncation", filtered=True))
    if of_row and run.config.data.filter_overlong_prompts:
        # verl leaves this row out.
        yield from _all_left_out(base, plain, first)
        return
    if run.mode is None:
        yield from of_row
        return
    loop = run.config.actor_rollout_ref.rollout.agent.default_agent_loop
    if (named := first.row.get(AGENT_NAME, loop)) != loop:
        reason = "verl's agent loop of that name plays such rows, and the team does not"
        yield ConfigWarning(f"{first.file}, column {AGENT_NAME!r}, first row: {named!r}", reason, "remove the column")
    what = f"workflow {run.mas.workflow.name} on the first row of {first.file}"
    workflow, limits = resolve(run.mas.workflow), _limits(run)
    stated = any(workflow.longest_prompt(own.member.role) for own in limits.values())
    # A session is played to its end: with replies of the longest length where the workflow does not state its prompts.
    recorder = Recorder({name: 1 if stated or first.validation else own.reply for name, own in limits.items()})
    task, tools = _task_of(run.config, first), _with_unread(run.mas, tools)
    result = played(run.mas, tools, recorder, task)
    if result and (wrong := [fault for fault in result.faults if isinstance(fault.__cause__, WorkflowError)]):
        yield _failed(wrong[-1], what, f"first row of {first.file}")
    elif recorder.requests:
        found: list[Problem] = [*_blind(run, recorder.requests, what)]
        found = found or [*_first_prompt(run, recorder.requests[0], first.file, filtered=bool(of_row))]
        yield from found
        if not first.validation:
            yield from _of_program(result, what) if isinstance(workflow, Program) else ()
            yield from check_idle(run, tools, task, recorder.requests)
            yield from check_unread(run, tools, task)
            yield from check_tried(run, tools, task, what)
        if result and not result.faults and not isinstance(workflow, Program):
            yield from _other_sessions(run, tools, first)
            yield from _unwritable(run, recorder.requests, what)
        yield from _reported(run, result, what, validation=first.validation)
        if not first.validation and not any(isinstance(problem, ConfigError) for problem in found):
            yield from _longest_prompts(run, recorder.requests[: 1 if stated else None], result, stated=stated)
    elif result is None:
        reason = f"not checked: it reached no act within {TIME_LIMIT} s"
        fix = "use `await` for what takes long, as a blocked event loop stops all sessions of a worker"
        yield ConfigWarning(what, reason=reason, fix=fix)
    elif result.faults:
        yield _failed(result.faults[-1], what, f"first row of {first.file}")
    else:
        fix = "write `await` before each act, and see what check_workflow finds"
        yield ConfigWarning(what, reason="no agent acted, so nothing is trained", fix=fix)


def _other_sessions(run: Run, tools: Mapping[str, Tool], first: FirstRow) -> Iterator[ConfigError]:
    """A row that the workflow does not take, of those that may be played in the time for them."""
    one, changed = dict.fromkeys(agents_of(run.mas), 1), partial(replace, first)
    until = time.monotonic() + TIME_OF_OTHERS
    for number, row in other_rows(first).items():
        if not is_prompt(row[str(run.config.data.prompt_key)]):
            continue  # Refused already.
        if refused := next(check_images(run.config, changed(sample=[row])), None):
            yield refused
            return
        client = Recorder(one)
        result = played(run.mas, tools, client, _task_of(run.config, changed(sample=[row])))
        what = f"workflow {run.mas.workflow.name} on row {number} of {first.file}"
        if unseen := list(_blind(run, client.requests, what)):
            yield from unseen
            return
        for fault in result.faults if result else ():
            yield _failed(fault, what, f"row {number} of {first.file}")
            return
        if time.monotonic() > until:
            return


def _unwritable(run: Run, requests: Sequence[Request], what: str) -> Iterator[ConfigError]:
    """An agent whose replies are too short for each of the forms that its prompt names."""
    limits = _limits(run)
    for request in {request.agent: request for request in requests}.values():
        own, texts = limits[request.agent], map(text_of, request.messages)
        chat = ChatTemplate.of_model(own.view.section("model")) if own.view.spec.remote is None else None
        forms = [
            f"<{tag}>{'a' if ' ' in inner else inner}</{tag}>" for text in texts for tag, inner in ASKED.findall(text)
        ]
        lengths = [chat.length(form, own.reply) or 0 for form in forms] if chat else []
        if lengths and min(lengths) > own.reply:
            value = f"{what}: {request.agent} is asked for {forms[0]!r:.80}, of {lengths[0]} tokens"
            rule = f"its replies have at most {own.reply} tokens, so none has that form"
            yield ConfigError(value, rule=rule, fix="raise data.max_response_length, or the agent's max_tokens")


def _blind(run: Run, requests: Sequence[Request], what: str) -> Iterator[ConfigError]:
    """Of each agent the first prompt that it cannot see."""
    found = dict[str, list[ConfigError]]()
    for request in requests:
        view = run.view(agents_of(run.mas)[request.agent].spec.policy)
        if view.spec.remote is None and not found.get(request.agent):
            found[request.agent] = list(check_seeing(view, request, what))
    yield from chain(*found.values())


def _of_program(result: SessionResult | None, what: str) -> Iterator[ConfigWarning]:
    for fault in result.faults[-1:] if result else ():
        reason = "a session that ends so is not trained on; replies may hold anything, and here they are ' a a a'"
        yield ConfigWarning(f"{what}: {fault.cause}", reason, "correct the program, and see `verl-mas try`")


def _reported(run: Run, result: SessionResult | None, what: str, *, validation: bool) -> Iterator[Problem]:
    """What the run reads of a session that ended, and what it does not."""
    outcome = result.session.outcome if result and not result.failed else None
    if result is None or outcome is None:
        return
    workflow, replies = resolve(run.mas.workflow), result.session.replies
    scored = needs_score(outcome, replies)
    if scored and not workflow.scored_by_verl:
        yield from check_scored(run.config)
    if validation:
        return
    own = ", ".join(sorted({reply.agent for reply in replies if reply.reward is not None}))
    if own and not run.mas.reward.local and not workflow.own_rewards:
        reason = f"{what} gives acts of {own} rewards of their own, and this is their weight"
        yield ConfigWarning(f"mas.reward.local=0 (preset {run.mas.reward.preset})", reason, "set ++mas.reward.local=1")
    if scored:
        return
    for setting in ("reward.custom_reward_function.path", "reward.sandbox_fusion.url"):
        if (given := OmegaConf.select(run.config, setting)) and workflow.answer_form(None) is None:
            reason = f"{what} rewards itself, and calls no reward function"
            yield ConfigWarning(f"{setting}={given}", reason, "remove it")
    if run.mas.filter.by == "acc" and "acc" not in outcome.info:
        reason = "the run ends at the first session without it"
        fix = "return Outcome(info={'acc': ...}), or set mas.filter.by=team"
        yield ConfigWarning(f"mas.filter.by=acc, and {what} reports none", reason, fix)


def _first_prompt(run: Run, request: Request, file: str, *, filtered: bool) -> Iterator[Problem]:
    spec = agents_of(run.mas)[request.agent].spec
    view = run.view(spec.policy)
    if not is_prompt(list(request.messages)):
        value = f"agent {request.agent} acts first on {str(request.messages)[:120]}"
        yield ConfigError(value, rule="each message has a role and a content", fix="correct the workflow")
        return
    if unknown := sorted({str(message["role"]) for message in request.messages} - ROLES):
        value = f"agent {request.agent} acts first on a message of the role {unknown[0]!r}"
        fix = f"use one of {', '.join(sorted(ROLES))}"
        yield ConfigWarning(value, reason="chat templates pass over it, or write what no model has learnt", fix=fix)
    if view.spec.remote is None:
        yield from sampling_errors(request.sampling, view.engine, f"the first act of agent {request.agent}")
        yield from _rendered(view, request, file, f"mas.agents.{request.agent}.truncation", filtered=filtered)
        if request.tools:
            yield from rendered_tools(run, spec, request.tools)


def _all_left_out(base: View, request: Request, first: FirstRow) -> Iterator[Problem]:
    prompts = [seen(base.run.config, row) for row in first.sample]
    limit = _limit(base, "prompt_length", None)
    if all((_tokens_of(base, replace(request, messages=messages), limit) or 0) > limit for messages in prompts):
        value = f"each of the first {len(prompts)} rows of {first.file} has more than {limit} tokens"
        rule = "data.filter_overlong_prompts leaves them out, and a run needs rows"
        if len(prompts) == first.total:
            yield ConfigError(value, rule=rule, fix="raise data.max_prompt_length")
        else:
            yield ConfigWarning(value, reason=rule, fix="raise data.max_prompt_length")


def _has_media(config: DictConfig, first: FirstRow) -> bool:
    """Videos and sounds, whose tokens are not counted here."""
    kinds, row = ("video", "audio"), first.row
    parts = [part for message in row[str(config.data.prompt_key)] for part in message.get("content") or ()]
    keys = {str(config.data[f"{kind}_key"]) for kind in kinds}
    return (
        any(row.get(key) for key in keys)
        or any(leaf.split(".")[0] in keys for leaf in first.types)
        or any(isinstance(part, dict) and part.get("type") in kinds for part in parts)
    )


def _task_of(config: DictConfig, first: FirstRow) -> Task:
    """As the agent-loop worker builds it from what verl's dataset returns."""
    row, messages = first.row, seen(config, first.row)
    extra = row.get(EXTRA_INFO) or {}
    added = {RAW_PROMPT: messages, EXTRA_INFO: extra, UID: "check", SESSION_ID: 0, GLOBAL_STEPS: 0}
    kwargs = {name: extra.get(name) or {} for name in ("tools_kwargs", "interaction_kwargs")}
    return Task.of_row(
        {**row, **added, **kwargs, "index": extra.get("index", 0)}, validate=first.validation, greedy=False
    )


def _with_unread(mas: MasConfig, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Also in place of a tool whose class alone has its schema."""
    named = {name for member in agents_of(mas).values() for name in member.spec.tools}
    return {**{name: Tool({"type": "function", "function": {"name": name}}) for name in sorted(named)}, **tools}


def _failed(fault: SessionFault, what: str, row: str) -> ConfigError:
    cause = fault.__cause__
    if isinstance(cause, InvalidInput):
        return ConfigError(f"{cause.value} ({row})", rule=cause.rule, fix=cause.fix)
    fix = "give the data that this workflow reads, or correct its `run`"
    return ConfigError(f"{what}: {fault.cause}", rule="a workflow takes the rows of its data", fix=fix)


def _rendered(view: View, request: Request, file: str, truncation: str, *, filtered: bool) -> Iterator[Problem]:
    """Whether the chat template takes the messages, and their length, where the tokenizer's files are here.

    `filtered`: verl can leave the row out; it counts the row's own messages, without what a workflow adds.
    """
    limit = _limit(view, "prompt_length", request.max_prompt_length)
    if blind := list(check_seeing(view, request, f"the first row of {file}")):
        yield from blind
        return
    try:
        rendered = _text_of(view, request)
    except ValueError as error:
        yield ConfigError(
            f"the chat template of policy {view.name} fails at the first prompt on the first row of {file}: {error}",
            rule="prompts are rendered with the chat template of the policy's model",
            fix=f"change the messages, or set {SECTION}.model.custom_chat_template",
        )
        return
    if rendered is None:
        return
    chat, text = rendered
    if unread := _left_out(request.messages, text):
        value = f"the chat template of policy {view.name} leaves out a message on the first row of {file}"
        rule = f"an agent reads what it is asked, here {unread!r:.120}"
        yield ConfigError(value, rule=rule, fix=f"correct the template, or set {SECTION}.model.custom_chat_template")
        return
    length = _length(view, chat, request, text, limit)
    if length is None or length <= limit:
        return
    value = f"the first prompt on the first row of {file} has {length} tokens, and {limit} are allowed"
    if request.truncation == "error":
        rule = f"with {truncation}=error a longer prompt fails"
        other = "set data.filter_overlong_prompts=True" if filtered else f"set ++{truncation}=middle"
        yield ConfigError(value, rule=rule, fix=f"raise data.max_prompt_length, or {other}")
    else:
        yield ConfigWarning(value, reason=f"it is cut: {truncation}={request.truncation}", fix="raise the limit")


def _limit(view: View, key: str, own: int | None) -> int:
    """Tokens of a prompt or a reply: the rollout's, or fewer where the agent says so."""
    longest = int(view.value(f"rollout.{key}"))
    return min(longest, own or longest)


def _tokens_of(view: View, request: Request, limit: int) -> int | None:
    """The length of a prompt; None if it is surely within the limit, or cannot be counted here, as check_model says.
    Raises ValueError where the chat template does not take the messages."""
    rendered = _text_of(view, request)
    return None if rendered is None else _length(view, rendered[0], request, rendered[1], limit)


def _length(view: View, chat: ChatTemplate, request: Request, text: str, limit: int) -> int | None:
    of_images = tokens_of(view, request.messages)
    length = chat.length(text, limit - of_images)
    return None if length is None else length + of_images


def _text_of(view: View, request: Request) -> tuple[ChatTemplate, str] | None:
    chat = ChatTemplate.of_model(view.section("model"))
    if chat is None:
        return None
    request, _ = plain_request(request)
    settings = {**(view.run.config.data.get("apply_chat_template_kwargs") or {}), **request.chat_template_kwargs}
    tools = {"tools": list(request.tools)} if request.tools else {}
    return chat, chat.render(request.messages, {**settings, **tools})


def _left_out(messages: Sequence[Message], text: str) -> str:
    """What the user asks last, or the system says, if its longest word is not in the text of the prompt, which may be
    spaced and escaped in another way."""
    last = {message.get("role"): text_of(message) for message in messages}
    for written in (last.get("user", ""), last.get("system", "")):
        if max(re.findall(r"[A-Za-z0-9]+", written), key=len, default="") not in text:
            return written
    return ""


# Whether the longest prompts of a session fit: by what the workflow states, or as they are in a session that is played.


WORD = " a"  # one token of most tokenizers
# Of what an agent is told to do with the replies that it reads.
INSTRUCTION = 64


@dataclass(frozen=True)
class Limits:
    """Of an agent's prompts and replies, in tokens."""

    view: View
    member: Member

    @property
    def prompt(self) -> int:
        return _limit(self.view, "prompt_length", self.member.spec.max_prompt_length)

    @property
    def reply(self) -> int:
        return _limit(self.view, "response_length", self.member.spec.sampling.get("max_tokens"))


def _limits(run: Run) -> dict[str, Limits]:
    return {name: Limits(run.view(member.spec.policy), member) for name, member in agents_of(run.mas).items()}


def _longest_prompts(
    run: Run, requests: Sequence[Request], result: SessionResult | None, *, stated: bool
) -> Iterator[Problem]:
    if result and any(fault.cause.startswith("more than ") for fault in result.faults):
        limit = run.mas.faults.max_acts
        value = f"mas.faults.max_acts={limit}, and a session whose replies solve nothing has more acts"
        reason = "it fails and is not trained on; every candidate of a branch is an act"
        yield ConfigWarning(value, reason, "raise mas.faults.max_acts, or lower mas.branch or mas.workflow.args")
    limits, counted = _limits(run), dict[str, int]()
    for request in requests:
        own = limits[request.agent]
        if own.view.spec.remote is None:
            tokens = _tokens_of(own.view, request, 0 if stated else own.prompt) or 0
            counted[request.agent] = max(tokens, counted.get(request.agent, 0))
    if stated:
        yield from check_stated_prompts(run, max(counted.values(), default=0))
        return
    how = "measured in a session with replies of the longest length"
    yield from _longest(limits, {name: (tokens, how) for name, tokens in counted.items()})


def check_stated_prompts(run: Run, task: int = 0) -> Iterator[ConfigWarning]:
    """By what the workflow states. `task`: tokens of the first prompt; 0: not known."""
    workflow, limits = resolve(run.mas.workflow), _limits(run)
    longest = max(own.reply for own in limits.values())
    lengths: dict[str, tuple[int, str]] = {}
    for name, own in limits.items():
        tasks, replies = workflow.longest_prompt(own.member.role) or (0, 0)
        if replies:
            of_task = f"the task ({task or 'not counted'}) and " if tasks else ""
            length = tasks * task + replies * longest + INSTRUCTION
            lengths[name] = length, f"{of_task}{replies} x {longest} tokens of replies"
    yield from _longest(limits, lengths)


def _longest(limits: Mapping[str, Limits], lengths: Mapping[str, tuple[int, str]]) -> Iterator[ConfigWarning]:
    """Of the agent whose prompt is furthest over its limit; to set the limit for one is to set it for all."""
    over = {
        name: length - limits[name].prompt
        for name, (length, _) in lengths.items()
        # Other prompts are cut, or go to an endpoint.
        if limits[name].view.spec.remote is None and limits[name].member.spec.truncation == "error"
    }
    name = max(over, key=lambda name: over[name], default=None)
    if name is None or over[name] <= 0:
        return
    length, how = lengths[name]
    yield ConfigWarning(
        f"the longest prompt of agent {name} has about {length} tokens of {limits[name].prompt}: {how}",
        reason="a session with a longer prompt fails and is not trained on",
        fix=f"set data.max_prompt_length={length} or more, lower data.max_response_length, or set "
        f"++mas.agents.{limits[name].member.role}.truncation=middle",
    )
