"""Whether the longest prompts of a session fit: those that hold what agents wrote before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verl_mas.checks.first_prompt import Recorder, has_media, played, task_of, tokens_of
from verl_mas.checks.verl.data_files import check_scored, sound_rows
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.run import Run, View
from verl_mas.errors import ConfigWarning
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Generation, Request
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.task import Task
from verl_mas.workflow.tools import Tool

WORD = " a"  # one token of most tokenizers
# Of what an agent is told to do with the replies that it reads.
INSTRUCTION = 64


@dataclass(frozen=True)
class Limits:
    """Of an agent's prompts and replies, in tokens."""

    view: View
    role: str
    prompt: int
    reply: int


def check_longest_prompts(run: Run, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """On the first row of the training data."""
    first = next(sound_rows(run.config), None)
    if first is None or has_media(run.config, first.row):
        return
    task, workflow = task_of(run.config, first), resolve(run.mas.workflow)
    if any(workflow.longest_prompt(member.role) for member in agents_of(run.mas).values()):
        recorder = Recorder()
        played(run.mas, tools, recorder, task)
        request = recorder.request
        own = _limits(run).get(request.agent) if request else None
        yield from check_stated_prompts(run, tokens_of(own.view, request, 0) if own and request else None)
    else:
        yield from _check_played(run, tools, task)


def check_stated_prompts(run: Run, task: int | None = None) -> Iterator[ConfigWarning]:
    """By what the workflow states. `task`: tokens of the first prompt, if they are known."""
    workflow, limits = resolve(run.mas.workflow), _limits(run)
    longest = max((own.reply for own in limits.values()), default=0)
    lengths: dict[str, tuple[int, str]] = {}
    for name, own in limits.items():
        tasks, replies = workflow.longest_prompt(own.role) or (0, 0)
        if replies:
            of_task = f"the task ({task or 'not counted'}) and " if tasks else ""
            length = tasks * (task or 0) + replies * longest + INSTRUCTION
            lengths[name] = length, f"{of_task}{replies} x {longest} tokens of replies"
    yield from _too_long(limits, lengths)


def _check_played(run: Run, tools: Mapping[str, Tool], task: Task) -> Iterator[Problem]:
    """A session in which every reply has its longest length."""
    limits = _limits(run)
    replies = LongReplies(limits)
    result = played(run.mas, tools, replies, task)
    ended = result.session if result and not result.failed else None
    if ended and needs_score(ended.outcome, ended.replies) and not resolve(run.mas.workflow).scored_by_verl:
        yield from check_scored(run.config)
    lengths: dict[str, tuple[int, str]] = {}
    for request in replies.requests:
        if (own := limits.get(request.agent)) and (length := tokens_of(own.view, request, own.prompt)):
            longest = max(length, lengths.get(request.agent, (0, ""))[0])
            lengths[request.agent] = longest, "measured in a session with replies of the longest length"
    yield from _too_long(limits, lengths)


class LongReplies:
    """An LLMClient that keeps the requests that start a row."""

    def __init__(self, limits: Mapping[str, Limits]):
        self._limits = limits
        self.requests: list[Request] = []

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        if request.continues is None:
            self.requests.append(request)
        own = self._limits.get(request.agent)
        return [Generation(WORD * own.reply if own else WORD)] * n


def _limits(run: Run) -> dict[str, Limits]:
    """Of the agents whose longer prompts fail: others are cut, or go to an endpoint."""
    found = {}
    for name, member in agents_of(run.mas).items():
        view, spec = run.view(member.spec.policy), member.spec
        if view.spec.remote is None and spec.truncation == "error":
            prompt, reply = int(view.value("rollout.prompt_length")), int(view.value("rollout.response_length"))
            prompt, reply = (
                min(prompt, spec.max_prompt_length or prompt),
                min(reply, spec.sampling.get("max_tokens") or reply),
            )
            found[name] = Limits(view, member.role, prompt, reply)
    return found


def _too_long(limits: Mapping[str, Limits], lengths: Mapping[str, tuple[int, str]]) -> Iterator[ConfigWarning]:
    """Of the agent with the longest prompt; to set the limit for one is to set it for all."""
    name = max(lengths, key=lambda name: lengths[name][0] - limits[name].prompt, default=None)
    if name is None or lengths[name][0] <= limits[name].prompt:
        return
    length, counted = lengths[name]
    yield ConfigWarning(
        f"the longest prompt of agent {name} has about {length} tokens of {limits[name].prompt}: {counted}",
        reason="a session with a longer prompt fails and is not trained on",
        fix=f"set data.max_prompt_length={length} or more, lower data.max_response_length, or set "
        f"++mas.agents.{limits[name].role}.truncation=middle",
    )
