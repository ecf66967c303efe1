"""The prompts of a session on a dataset row: the workflow builds them, the policy's chat template renders them, and the
longest ones hold what agents wrote before."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.images import check_images, check_seeing, seen
from verl_mas.checks.influence import TASKS, check_influence
from verl_mas.checks.lengths import (
    WORD,
    check_longest_prompts,
    check_right_replies,
    check_writable,
    length_of,
    limit_of,
    limits_of,
    prompt_tokens,
    render,
)
from verl_mas.checks.tools import rendered_tools
from verl_mas.checks.tried import TIME_LIMIT, check_idle, check_tried, check_unread, of_user, played
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.files import check_scored
from verl_mas.checks.verl.model_folder import ChatTemplate, vision_of
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.rows import ROLES, FirstRow, is_prompt, many_rows, other_rows, sound_rows
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run, View
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.engines.sampling import sampling_errors
from verl_mas.errors import ConfigError, ConfigWarning, InvalidInput, SessionFault, WorkflowError
from verl_mas.gateway.program import Program
from verl_mas.registry import nearest
from verl_mas.row import AGENT_NAME, DATA_SOURCE, EXTRA_INFO, GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.workflow.base import Workflow, agents_of, resolve
from verl_mas.workflow.client import Generation, Message, Request
from verl_mas.workflow.marks import plain_request
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.session import SessionResult
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflow.tools import Tool
from verl_mas.workflows.world import WorldTeam
from verl_mas.worlds.world import NAME, OPTIONS

# Arguments of a tokenizer's apply_chat_template, which a template need not read.
OF_TOKENIZERS = "add_generation_prompt documents tokenizer_kwargs".split()

TIME_OF_OTHERS = 0.5  # Seconds for the sessions of other rows
SLOW = 0.2  # Seconds of one session, of which a hundred are compared


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
    if run.config.data.filter_overlong_prompts:
        yield from _rows_left_out(base, plain, first)
        if of_row:
            return  # verl leaves this row out.
    if run.mode is None:
        yield from of_row
        return
    loop = run.config.actor_rollout_ref.rollout.agent.default_agent_loop
    rows = many_rows(first) if AGENT_NAME in first.columns else ()
    if other := next((n for n, row in enumerate(rows, 1) if row[AGENT_NAME] != loop), None):
        reason = "verl's agent loop of that name plays such rows, and the team does not"
        value = f"{first.file}, column {AGENT_NAME!r}, row {other}: {rows[other - 1][AGENT_NAME]!r}"
        yield ConfigWarning(value, reason, "remove the column")
    yield from _other_world(resolve(run.mas.workflow), first)
    yield from _session(run, tools, first, filtered=bool(of_row))


def _other_world(workflow: Workflow, first: FirstRow) -> Iterator[ConfigWarning]:
    extra, source = first.row.get(EXTRA_INFO) or {}, str(first.row.get(DATA_SOURCE))
    own, options = extra.get(NAME), json.loads(extra.get(OPTIONS) or "{}")
    for name, value in workflow.options.items() if isinstance(workflow, WorldTeam) else ():
        if (of_rows := options.get(name, value)) != value:
            reason = f"the rows of {first.file} say {name}={of_rows}, which counts"
            yield ConfigWarning(f"mas.workflow.args.options.{name}={value}", reason, "remove it, or write rows with it")
    if isinstance(workflow, WorldTeam) and (
        own not in (None, "", workflow.name) or (not own and "/" in source and source != workflow.world)
    ):
        value = f"mas.workflow.args.world={workflow.world}, and the first row of {first.file} is of {own or source}"
        yield ConfigWarning(value, "the row is of another game", "give the data of that world")


def _session(run: Run, tools: Mapping[str, Tool], first: FirstRow, *, filtered: bool) -> Iterator[Problem]:
    what = f"workflow {run.mas.workflow.name} on the first row of {first.file}"
    workflow, limits = resolve(run.mas.workflow), limits_of(run)
    stated = any(workflow.longest_prompt(own.member.role) for own in limits.values())
    # A session is played to its end: with replies of the longest length where the workflow does not state its prompts.
    recorder = Recorder({name: 1 if stated or first.validation else own.reply for name, own in limits.items()})
    task, tools = _task_of(run.config, first), _with_unread(run.mas, tools)
    result = played(run.mas, tools, recorder, task)
    if result and (wrong := [fault for fault in result.faults if isinstance(fault.__cause__, WorkflowError)]):
        yield _failed(wrong[-1], what, f"first row of {first.file}")
    elif recorder.requests:
        found: list[Problem] = [*_blind(run, recorder.requests, what)]
        found = found or [*_first_prompt(run, recorder.requests[0], first.file, filtered=filtered)]
        yield from found
        if not first.validation:
            yield from _of_program(result, what) if isinstance(workflow, Program) else ()
            yield from check_tried(run, tools, task, what)
            yield from _compared(run, tools, first, recorder.requests, what)
        sound = not any(isinstance(problem, ConfigError) for problem in found)
        if sound and result and not result.faults and not isinstance(workflow, Program):
            yield from _other_sessions(run, tools, first)
            yield from check_writable(run, recorder.requests, what)
        yield from _reported(run, result, what, validation=first.validation)
        if sound and not first.validation:
            requests = recorder.requests[: 1 if stated else None]
            yield from (
                list(check_longest_prompts(run, requests, result, stated=stated))
                or check_right_replies(run, tools, task)
            )
    elif result is None:
        reason = f"not checked: it reached no act within {TIME_LIMIT} s"
        fix = "use `await` for what takes long, as a blocked event loop stops all sessions of a worker"
        yield ConfigWarning(what, reason=reason, fix=fix)
    elif result.faults:
        yield _failed(result.faults[-1], what, f"first row of {first.file}")
    else:
        fix = "write `await` before each act, and see what check_workflow finds"
        yield ConfigWarning(what, reason="no agent acted, so nothing is trained", fix=fix)


def _compared(
    run: Run, tools: Mapping[str, Tool], first: FirstRow, requests: Sequence[Request], what: str
) -> Iterator[Problem]:
    """Many sessions that differ in one thing."""
    tasks = [_task_of(run.config, replace(first, sample=[row])) for row in first.sample[:TASKS]]
    started = time.monotonic()
    played(run.mas, tools, Recorder(dict.fromkeys(agents_of(run.mas), 1)), tasks[0])
    if (seconds := time.monotonic() - started) > SLOW and of_user(resolve(run.mas.workflow)):
        value, reason = f"{what} takes {seconds:.1f} s without a model", "so its sessions were not compared"
        yield ConfigWarning(value, reason, "make `run` shorter, such as with a server that answers at once")
        return
    yield from check_idle(run, tools, tasks[0], requests)
    yield from check_unread(run, tools, tasks[0])
    yield from check_influence(run, tools, tasks, what)


def _other_sessions(run: Run, tools: Mapping[str, Tool], first: FirstRow) -> Iterator[Problem]:
    """A row that the workflow does not take, of those that may be played in the time for them."""
    one, changed = dict.fromkeys(agents_of(run.mas), 1), partial(replace, first)
    until = time.monotonic() + TIME_OF_OTHERS
    key = str(run.config.data.prompt_key)
    for number, row in other_rows(first, key).items():
        if not is_prompt(row[key]):
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
        if too_long := list(_over(run, client.requests[:1], f"row {number} of {first.file}")):
            yield from too_long
            return
        if time.monotonic() > until:
            return


def _over(run: Run, requests: Sequence[Request], where: str) -> Iterator[ConfigWarning]:
    for request in requests:
        view = run.view(agents_of(run.mas)[request.agent].spec.policy)
        limit = limit_of(view, "prompt_length", request.max_prompt_length)
        fails = request.truncation == "error" and not run.config.data.filter_overlong_prompts
        if fails and view.spec.remote is None and (tokens := prompt_tokens(view, request, limit) or 0) > limit:
            value = f"the first prompt on {where} has {tokens} tokens, and {limit} are allowed"
            fix = "raise data.max_prompt_length, or set data.filter_overlong_prompts=True"
            yield ConfigWarning(value, "each session of this row fails", fix)


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
    size = OmegaConf.select(run.config, "transfer_queue.backend.SimpleStorage.total_storage_size")
    batches = run.staleness.least if run.staleness else 1
    if size and (rows := len(result.session.rows()) * run.sessions_per_step * batches) > size:
        value = f"transfer_queue.backend.SimpleStorage.total_storage_size={size}"
        reason = f"{what} has {len(result.session.rows())} rows, so up to {rows} are stored at once"
        yield ConfigWarning(value, reason, "set it to null: the storage then grows as needed")
    own = ", ".join(sorted({reply.agent for reply in replies if reply.reward is not None}))
    if own and not run.mas.reward.local and not workflow.own_rewards:
        reason = f"{what} gives acts of {own} rewards of their own, and this is their weight"
        yield ConfigWarning(f"mas.reward.local=0 (preset {run.mas.reward.preset})", reason, "set ++mas.reward.local=1")
    if scored:
        return
    yield from combinations("rewarded", run.config, what=what, form=workflow.answer_form(None))
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


def _rows_left_out(base: View, request: Request, first: FirstRow) -> Iterator[Problem]:
    limit = limit_of(base, "prompt_length", None)
    prompts = (replace(request, messages=seen(base.run.config, row)) for row in first.sample)
    try:
        over, rows = sum((prompt_tokens(base, prompt, limit) or 0) > limit for prompt in prompts), len(first.sample)
    except ValueError:
        return  # The chat template does not take them, as the first prompt says.
    if 2 * over <= rows:
        return
    value = f"{'each' if over == rows else over} of the first {rows} rows of {first.file} has more than {limit} tokens"
    rule = "data.filter_overlong_prompts leaves them out, by their own text"
    if over == first.total:
        yield ConfigError(value, rule=f"{rule}, and a run needs rows", fix="raise data.max_prompt_length")
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
    limit = limit_of(view, "prompt_length", request.max_prompt_length)
    if blind := list(check_seeing(view, request, f"the first row of {file}")):
        yield from blind
        return
    try:
        rendered = render(view, request)
    except ValueError as error:
        yield ConfigError(
            f"the chat template of policy {view.name} fails at the first prompt on the first row of {file}: {error}",
            rule="prompts are rendered with the chat template of the policy's model",
            fix=f"change the messages, or set {SECTION}.model.custom_chat_template",
        )
        return
    if forged := plain_request(request)[1]:
        value = f"the first prompt on the first row of {file} has {forged} marks of a chat template"
        fix = "write messages without a template, which is applied to them"
        yield ConfigWarning(value, reason="contents are text: these become ordinary characters", fix=fix)
    if rendered is None:
        return
    chat, text = rendered
    if unread := _left_out(request.messages, text):
        value = f"the chat template of policy {view.name} leaves out a message on the first row of {file}"
        rule = f"an agent reads what it is asked, here {unread!r:.120}"
        yield ConfigError(value, rule=rule, fix=f"correct the template, or set {SECTION}.model.custom_chat_template")
        return
    length = length_of(view, chat, request, text, limit)
    if length is None or length <= limit:
        return
    value = f"the first prompt on the first row of {file} has {length} tokens, and {limit} are allowed"
    if request.truncation == "error":
        rule = f"with {truncation}=error a longer prompt fails"
        other = "set data.filter_overlong_prompts=True" if filtered else f"set ++{truncation}=middle"
        yield ConfigError(value, rule=rule, fix=f"raise data.max_prompt_length, or {other}")
    else:
        yield ConfigWarning(value, reason=f"it is cut: {truncation}={request.truncation}", fix="raise the limit")


def _left_out(messages: Sequence[Message], text: str) -> str:
    """What the user asks last, or the system says, if its longest word is not in the text of the prompt, which may be
    spaced and escaped in another way."""
    last = {message.get("role"): text_of(message) for message in messages}
    for written in (last.get("user", ""), last.get("system", "")):
        if max(re.findall(r"[A-Za-z0-9]+", written), key=len, default="") not in text:
            return written
    return ""
