"""Whether what agents read and write has room: by what the workflow states, or as it is in sessions that are played."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from verl_mas.checks.images import tokens_of
from verl_mas.checks.tried import ASKED, as_asked, played
from verl_mas.checks.verl.model_folder import ChatTemplate
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.run import Run, View
from verl_mas.errors import ConfigWarning
from verl_mas.testing.scripted_llm import Script, ScriptedLLM
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Request
from verl_mas.workflow.marks import plain_request
from verl_mas.workflow.members import Member
from verl_mas.workflow.session import SessionResult
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflow.tools import Tool

WORD = " a"  # one token of most tokenizers
# Of what an agent is told to do with the replies that it reads.
INSTRUCTION = 64


def limit_of(view: View, key: str, own: int | None) -> int:
    """Tokens of a prompt or a reply: the rollout's, or fewer where the agent says so."""
    longest = int(view.value(f"rollout.{key}"))
    return min(longest, own or longest)


def prompt_tokens(view: View, request: Request, limit: int) -> int | None:
    """The length of a prompt; None if it is surely within the limit, or cannot be counted here, as check_model says.
    Raises ValueError where the chat template does not take the messages."""
    rendered = render(view, request)
    return None if rendered is None else length_of(view, rendered[0], request, rendered[1], limit)


def length_of(view: View, chat: ChatTemplate, request: Request, text: str, limit: int) -> int | None:
    of_images = tokens_of(view, request.messages)
    length = chat.length(text, limit - of_images)
    return None if length is None else length + of_images


def render(view: View, request: Request) -> tuple[ChatTemplate, str] | None:
    chat = ChatTemplate.of_model(view.section("model"))
    if chat is None:
        return None
    request, _ = plain_request(request)
    settings = {**(view.run.config.data.get("apply_chat_template_kwargs") or {}), **request.chat_template_kwargs}
    tools = {"tools": list(request.tools)} if request.tools else {}
    return chat, chat.render(request.messages, {**settings, **tools})


@dataclass(frozen=True)
class Limits:
    """Of an agent's prompts and replies, in tokens."""

    view: View
    member: Member

    @property
    def prompt(self) -> int:
        return limit_of(self.view, "prompt_length", self.member.spec.max_prompt_length)

    @property
    def reply(self) -> int:
        return limit_of(self.view, "response_length", self.member.spec.sampling.get("max_tokens"))


def limits_of(run: Run) -> dict[str, Limits]:
    return {name: Limits(run.view(member.spec.policy), member) for name, member in agents_of(run.mas).items()}


def check_longest_prompts(
    run: Run, requests: Sequence[Request], result: SessionResult | None, *, stated: bool
) -> Iterator[Problem]:
    if result and any(fault.cause.startswith("more than ") for fault in result.faults):
        limit = run.mas.faults.max_acts
        value = f"mas.faults.max_acts={limit}, and a session whose replies solve nothing has more acts"
        reason = "it fails and is not trained on; every candidate of a branch is an act"
        yield ConfigWarning(value, reason, "raise mas.faults.max_acts, or lower mas.branch or mas.workflow.args")
    limits, counted = limits_of(run), dict[str, int]()
    for request in requests:
        own = limits[request.agent]
        if own.view.spec.remote is None:
            tokens = prompt_tokens(own.view, request, 0 if stated else own.prompt) or 0
            counted[request.agent] = max(tokens, counted.get(request.agent, 0))
    if stated:
        yield from check_stated_prompts(run, max(counted.values(), default=0))
        return
    how = "measured in a session with replies of the longest length"
    yield from _longest(limits, {name: (tokens, how) for name, tokens in counted.items()})


def check_right_replies(run: Run, tools: Mapping[str, Tool], task: Task) -> Iterator[ConfigWarning]:
    """With what such replies lead to, as a search does to passages."""
    # What a retriever finds something for.
    word = max(re.findall(r"\w+", task.question), key=len, default="a")
    limits = limits_of(run)

    def cut(reply: Callable[[Request, int], str], request: Request, branch: int) -> str:
        return reply(request, branch)[: limits[request.agent].reply]

    replies: list[Script] = [partial(cut, as_asked(word, choice, only=True)) for choice in (0, 1)]
    clients = [ScriptedLLM(reply) for reply in (*replies, "a")]
    for client in clients:
        played(run.mas, tools, client, task)
    how, found = "measured in a session with replies of the form that is asked for", dict[str, tuple[int, str]]()
    for request in chain(*(client.requests for client in clients)):
        own = limits[request.agent]
        tokens = 0 if own.view.spec.remote else prompt_tokens(own.view, request, own.prompt) or 0
        found[request.agent] = max((tokens, how), found.get(request.agent, (0, how)))
    yield from _longest(limits, found)


def check_stated_prompts(run: Run, task: int = 0) -> Iterator[ConfigWarning]:
    """By what the workflow states. `task`: tokens of the first prompt; 0: not known."""
    workflow, limits = resolve(run.mas.workflow), limits_of(run)
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


def check_writable(run: Run, requests: Sequence[Request], what: str) -> Iterator[ConfigWarning]:
    """An agent whose replies are too short for each of the forms that its prompt names."""
    limits = limits_of(run)
    for request in {request.agent: request for request in requests}.values():
        own, texts = limits[request.agent], map(text_of, request.messages)
        chat = ChatTemplate.of_model(own.view.section("model")) if own.view.spec.remote is None else None
        forms = [
            f"<{tag}>{'a' if ' ' in inner else inner}</{tag}>" for text in texts for tag, inner in ASKED.findall(text)
        ]
        # Templates put marks around it.
        forms = forms or [json.dumps({"name": tool["function"]["name"], "arguments": {}}) for tool in request.tools]
        lengths = [chat.length(form, own.reply) or 0 for form in forms] if chat else []
        if lengths and min(lengths) > own.reply:
            value = f"{what}: {request.agent} is asked for {forms[0]!r:.80}, of {lengths[0]} tokens"
            reason = f"its replies have at most {own.reply} tokens, so none has that form"
            yield ConfigWarning(value, reason, "raise data.max_response_length, or the agent's max_tokens")
