"""Whether the longest prompts of a session fit: those that hold what agents wrote before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verl_mas.checks.first_prompt import Recorder, has_media, played, task_of
from verl_mas.checks.verl.chat_template import ChatTemplate
from verl_mas.checks.verl.data_files import FirstRow, check_scored, sound_rows
from verl_mas.checks.verl.model_folder import local_folder
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.run import Run
from verl_mas.errors import ConfigWarning
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Generation, Request
from verl_mas.workflow.members import Member
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.tools import Tool

WORD = " a"  # one token of most tokenizers
# Of what an agent is told to do with the replies that it reads.
INSTRUCTION = 64


@dataclass(frozen=True)
class Room:
    """Of an agent's prompts and replies, in tokens."""

    prompt: int
    reply: int

    @classmethod
    def of(cls, run: Run, member: Member) -> Room | None:
        """None: longer prompts are cut, or are those of an endpoint."""
        view = run.view(member.spec.policy)
        if view.spec.remote is not None or member.spec.truncation != "error":
            return None
        prompt, reply = int(view.value("rollout.prompt_length")), int(view.value("rollout.response_length"))
        own = member.spec.sampling.get("max_tokens")
        return cls(min(prompt, member.spec.max_prompt_length or prompt), min(reply, own) if own else reply)


def check_longest_prompts(run: Run, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """On the first row of the training data."""
    first = next(sound_rows(run.config), None)
    if first is None or has_media(run.config, first.row):
        return
    workflow = resolve(run.mas.workflow)
    if any(workflow.longest_prompt(member.role) for member in agents_of(run.mas).values()):
        recorder = Recorder()
        played(run.mas, tools, recorder, task_of(run.config, first))
        tokens = _length(run, recorder.request, 0) if recorder.request else None
        yield from check_stated_prompts(run, tokens or 0)
    else:
        yield from check_played_prompts(run, tools, first)


def check_stated_prompts(run: Run, task: int = 0, where: str = "") -> Iterator[ConfigWarning]:
    """By what the workflow states. `task`: tokens of the first prompt; 0: they are not known."""
    workflow, rooms = resolve(run.mas.workflow), _rooms(run)
    longest = max((room.reply for room in rooms.values()), default=0)
    lengths: dict[str, tuple[int, str]] = {}
    for name, room in rooms.items():
        stated = workflow.longest_prompt(agents_of(run.mas)[name].role)
        if stated and stated[1] and (length := stated[0] * task + stated[1] * longest + INSTRUCTION) > room.prompt:
            tasks = f"the task ({task or 'not counted'}) and " if stated[0] else ""
            lengths[name] = length, f"{tasks}{stated[1]} x {longest} tokens of replies"
    yield from _warning(run, rooms, lengths, where)


def check_played_prompts(run: Run, tools: Mapping[str, Tool], first: FirstRow) -> Iterator[Problem]:
    """Of a workflow that states nothing: a session in which every reply has its longest length."""
    rooms, asked = _rooms(run), LongReplies(_rooms(run))
    result = played(run.mas, tools, asked, task_of(run.config, first))
    ended = result.session if result and not result.failed else None
    if ended and needs_score(ended.outcome, ended.replies) and not resolve(run.mas.workflow).scored_by_verl:
        yield from check_scored(run.config)
    lengths: dict[str, tuple[int, str]] = {}
    for request in asked.requests:
        if request.agent in rooms and (length := _length(run, request, rooms[request.agent].prompt)):
            counted = length, "measured in a session with replies of the longest length"
            lengths[request.agent] = max(lengths.get(request.agent, counted), counted)
    yield from _warning(run, rooms, lengths, f" on the first row of {first.file}")


class LongReplies:
    """An LLMClient that keeps the requests that start a row."""

    def __init__(self, rooms: Mapping[str, Room]):
        self._rooms = rooms
        self.requests: list[Request] = []

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        if request.continues is None:
            self.requests.append(request)
        room = self._rooms.get(request.agent)
        return [Generation(WORD * room.reply if room else WORD)] * n


def _rooms(run: Run) -> dict[str, Room]:
    found = {name: Room.of(run, member) for name, member in agents_of(run.mas).items()}
    return {name: room for name, room in found.items() if room}


def _length(run: Run, request: Request, limit: int) -> int | None:
    """None: surely within the limit, or it cannot be counted here."""
    view = run.view(agents_of(run.mas)[request.agent].spec.policy)
    folder = local_folder(str(view.get("model.tokenizer_path") or view.get("model.path")))
    chat = ChatTemplate.of(folder, view.get("model.custom_chat_template")) if folder else None
    if chat is None:
        return None
    settings = {**(run.config.data.get("apply_chat_template_kwargs") or {}), **request.chat_template_kwargs}
    length = chat.length(chat.render(request.messages, settings), limit)
    return length if length and length > limit else None


def _warning(
    run: Run, rooms: Mapping[str, Room], lengths: Mapping[str, tuple[int, str]], where: str
) -> Iterator[ConfigWarning]:
    """Of the agent with the longest prompt; agents in one call would repeat it."""
    if not lengths:
        return
    name, (length, counted) = max(lengths.items(), key=lambda each: each[1][0])
    yield ConfigWarning(
        f"the longest prompt of agent {name} has about {length} tokens{where}, and {rooms[name].prompt} are allowed: "
        f"{counted}",
        reason="a session with a longer prompt fails and is not trained on",
        fix=f"set data.max_prompt_length={length} or more, lower data.max_response_length, or set "
        f"++mas.agents.{agents_of(run.mas)[name].role}.truncation=middle",
    )
