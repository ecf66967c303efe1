"""The objects that a workflow uses for acts: the team, its agents and their conversations."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Real
from statistics import fmean
from typing import TypeAlias, TypeVar

from verl_mas.config.registry import KnownNames, closest, nearest
from verl_mas.errors import FaultKind, SessionFault, WorkflowError
from verl_mas.util.loops import together
from verl_mas.workflow.client import Continuation, Message
from verl_mas.workflow.reply import Outcome, Reply
from verl_mas.workflow.session import Ask, Line, Session
from verl_mas.workflow.tools import CallContext, Tools

State = TypeVar("State")
CONTAINERS = (list, dict, set, bytearray, deque)
CONSTANTS = (str, bytes, int, float, complex, tuple, frozenset, type(None))  # types whose copy may be the same object
Prompt = str | Sequence[Message]
# (team, candidate, state) -> the outcome of the session if it continues with the candidate; a number is the reward.
PlayOn: TypeAlias = "Callable[[Team, Reply, State], Awaitable[Outcome | float]]"


class Team:
    """The agents of a session: `team.solver`, `team["reasoner_0"]`, `team.role("reasoner")`, `team.sub("left")`."""

    def __init__(self, session: Session, prefix: str = "", line: Line | None = None):
        self._session, self._prefix, self._line = session, prefix, line or session.line

    def __getitem__(self, name: str) -> Agent:
        agents = self._session.config.agents
        full = self._prefix + name
        if full not in agents:
            rule = "a workflow names every agent in its `agents`"
            raise WorkflowError(f"team has no agent {full!r}", rule=rule, fix=nearest(full, list(agents)))
        return Agent(self._session, Ask(agents[full], self._line))

    def __getattr__(self, name: str) -> Agent:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def role(self, role: str) -> list[Agent]:
        """Return all agents of a role, in the order of the workflow's `agents`."""
        wanted = self._prefix + role
        agents = self._session.config.agents.values()
        found = [Agent(self._session, Ask(agent, self._line)) for agent in agents if agent.role == wanted]
        roles = {agent.role for agent in agents}
        if not found and closest(wanted, roles):  # a team may have no agent of a role
            rule = "a role is that of an agent in `agents`"
            raise WorkflowError(f"team has no role {wanted!r}", rule=rule, fix=nearest(wanted, sorted(roles)))
        return found

    def sub(self, name: str) -> Team:
        """Return the sub-team whose agents are named with `nested(name, ...)`. Pass it to the `run` of its workflow."""
        return Team(self._session, f"{self._prefix}{name}_", self._line)

    def spawn(self, name: str) -> Agent:
        """Return a new instance of an agent, whose turns start at 0. Any number of instances may act in parallel."""
        return self[name].spawned()

    def commit(self, replies: Sequence[Reply]) -> Reply:
        """Choose one of the candidates by the configured rule. Step the environment with this candidate only."""
        return self._session.commit(replies)

    @property
    def replies(self) -> Sequence[Reply]:
        """The acts so far, including candidates that were not committed, but without probes."""
        return tuple(self._line.replies)

    def forget(self, reply: Reply) -> None:
        """Remove an act whose reply did not reach its caller. No later act depends on such a reply."""
        self._session.replies.remove(reply)
        self._line.replies.remove(reply)

    def aside(self, name: str = "aside") -> Team:
        """Return another `Team` with the same agents. Its acts are probes, which only measure something. They are
        not trained on, and are not in the `replies` of this team."""
        return Team(self._session, self._prefix, self._line.probing(name))

    async def continue_from(self, candidate: Reply, play: PlayOn[State], state: State, n: int = 1) -> float | None:
        """Score a candidate by `n` continuations to the end of the session. `play(team, candidate, copy of state)`
        returns the outcome of a continuation, and the mean of the rewards becomes `candidate.team_reward`.

        The acts of continuations are sampled with the current weights, and are not trained on. If the act has no other
        candidates, no continuation is run, and None is returned.
        """
        if candidate.among > 1:
            candidate.team_reward = await self._value(candidate, str(candidate.branch), play, state, n)
            return candidate.team_reward
        return None

    async def without(self, reply: Reply, play: PlayOn[State], state: State, n: int = 1) -> float | None:
        """Return the mean reward of `n` continuations from `state`, in which the act's message is missing or replaced
        by a neutral message. The session's reward minus this mean is the contribution of the act.

        As in `continue_from`, the acts of continuations are not trained on. In validation, and in a continuation of a
        candidate, no continuation is run, and None is returned.
        """
        if self._session.task.validate or self._line.alone:
            return None
        return await self._value(reply, "without", play, state, n)

    async def _value(self, reply: Reply, name: str, play: PlayOn[State], state: State, n: int) -> float:
        """Return the mean reward of `n` probes that continue from copies of `state`."""
        if n < 1:
            rule = "a session is continued 1 or more times"
            raise WorkflowError(f"a reply of {reply.agent} is continued with n={n}", rule=rule, fix="use n=1")

        async def once(number: int) -> float:
            probe = self._line.probing(f"{_place(reply)}/{name}/{number}")
            return (await self._session.score_of(await self._played_on(probe, reply, play, state))).reward

        return fmean(await together([partial(once, number) for number in range(n)]))

    async def fork(self, candidates: Sequence[Reply], play: PlayOn[State], state: State) -> list[Outcome]:
        """Continue every candidate to the end with acts that are trained on, and commit one candidate. The reward
        of a candidate's outcome is the team reward of the candidate and of the acts after it.

        The outcomes are in the order of the candidates. If there is only one candidate, the session itself continues
        with it.
        """
        if len(candidates) == 1:
            return [await self._outcome(self._line, candidates[0], play, state)]
        before = [reply for reply in self._line.replies if reply not in candidates]
        self._line.over = True

        async def played(candidate: Reply) -> tuple[Line, Outcome, float]:
            fork = self._line.forked(candidate.branch, _place(candidate))
            outcome = await self._played_on(fork, candidate, play, state)
            score = await self._session.score_of(outcome)
            _reward([candidate, *fork.replies], score.reward)
            return fork, replace(outcome, reward=score.reward, info={**score.info, **outcome.info}), score.reward

        ended = await together([partial(played, candidate) for candidate in candidates])
        # All forks share the acts before the fork, so these acts get the mean reward.
        _reward(before, fmean(reward for _, _, reward in ended))
        self._session.commit(candidates)
        for candidate, (fork, _, _) in zip(candidates, ended, strict=True):
            for reply in fork.replies:
                reply.committed = candidate.committed
        return [outcome for _, outcome, _ in ended]

    def twin(self, agent: Agent) -> Agent:
        """Return the same instance of an agent, for acts on the line of this team (`session.Line`). The instance may
        have been spawned before this line began."""
        return Agent(self._session, replace(agent.draft, line=self._line))

    def random(self, name: str) -> random.Random:
        """Return a generator of random numbers for one purpose. Each continuation has a generator of its own."""
        return self._line.random(name)

    def draw(self, board: str | Callable[[], str], title: str = "") -> None:
        """Show a state of the environment as text in the viewer, after the acts so far. In the record, `after` is the
        index of the last act before the board; None at the start.

        If `board` is a function, it is called only if its text is shown. Continuations of candidates show no boards.
        """
        if not self._line.alone:
            after = len(self._session.replies) - 1 if self._session.replies else None
            text = board() if callable(board) else board
            self._session.boards.append({"title": title, "text": text, "after": after})

    async def _played_on(self, line: Line, candidate: Reply, play: PlayOn[State], state: State) -> Outcome:
        with untouched(state):
            return await self._outcome(line, candidate, play, restored(state, line.random("state")))

    async def _outcome(self, line: Line, candidate: Reply, play: PlayOn[State], state: State) -> Outcome:
        outcome = await play(Team(self._session, self._prefix, line), candidate, state)
        if isinstance(outcome, Outcome):
            return outcome
        if isinstance(outcome, Real):
            return Outcome(reward=float(outcome))
        value = f"a candidate of {candidate.agent} was continued, and the result is {outcome!r:.200}"
        rule = "`play(team, candidate, state)` returns an Outcome, or its reward as a number"
        raise WorkflowError(value, rule=rule, fix="return Outcome(reward=...)")


def _place(reply: Reply) -> str:
    return f"{reply.agent}/{reply.instance}/{reply.turn}"


def _reward(replies: Sequence[Reply], reward: float) -> None:
    for reply in replies:
        if reply.team_reward is None:
            reply.team_reward = reward


class Agent(KnownNames):
    """One agent of a session: `await agent.act(prompt)` is one LLM call."""

    def __init__(self, session: Session, ask: Ask):
        self._session, self.draft = session, ask

    @property
    def name(self) -> str:
        return self.draft.agent.name

    @property
    def instance(self) -> int:
        return self.draft.instance

    def spawned(self) -> Agent:
        """Return a new instance of this agent. Raises SessionFault if there are too many instances."""
        line, limit = self.draft.line, self._session.config.faults.max_acts
        if line.spawned >= limit:
            cause = f"{line.spawned + 1} instances in a session; rule: each acts, and a session has at most "
            cause += f"mas.faults.max_acts={limit} acts; fix: spawn fewer, or raise mas.faults.max_acts"
            raise SessionFault(FaultKind.LIMIT, cause, agent=self.name, turn=0)
        return Agent(self._session, replace(self.draft, instance=line.new_instance(self.name)))

    async def act(self, messages: Prompt, *, tools: Tools = (), **sampling: object) -> Reply:
        """Make one LLM call without history, and one more after each round of tool calls. `tools` are functions that
        the agent may call in addition to its configured tools. `sampling` overrides the agent's sampling settings for
        this act."""
        ask = replace(self.draft, messages=self._opening(messages), sampling=sampling, tools=tools)
        return (await self._session.act(ask))[0]

    async def branch(
        self, messages: Prompt, k: int | None = None, *, tools: Tools = (), **sampling: object
    ) -> list[Reply]:
        """Sample K candidates from one prompt. In validation, `mas.branch.validation_k` replaces `k`.

        Candidates share a list of `tools`. If `tools` is a function, it is called once per candidate to make a list.
        """
        n = self._session.candidates(k, self.draft.line)
        ask = replace(self.draft, messages=self._opening(messages), sampling=sampling, tools=tools, n=n)
        return await self._session.act(ask)

    async def answer(
        self,
        messages: Sequence[Message],
        continues: Continuation | None = None,
        *,
        tools: Tools = (),
        origin: str = "",
        **sampling: object,
    ) -> Reply:
        """Make an act for a program that has its own tools and keeps its own history. The program makes all tool calls,
        and the tokens of `continues` are used unchanged. `max_tokens` and `stop` can only shorten the reply."""
        own = self.draft.agent.sampling(self._session.task, {})
        limits = [limit for limit in (own.get("max_tokens"), sampling.get("max_tokens")) if isinstance(limit, int)]
        stops = [*_texts(own.get("stop")), *_texts(sampling.get("stop"))]
        shorter = {**({"max_tokens": min(limits)} if limits else {}), **({"stop": stops} if stops else {})}
        prompt = messages if continues else self._opening(messages)
        ask = replace(self.draft, messages=prompt, sampling={**sampling, **shorter}, tools=tools, continues=continues)
        return (await self._session.act(replace(ask, calls_open=True, origin=origin)))[0]

    async def branch_off(
        self, context: CallContext, messages: Prompt, *, tools: Tools = (), max_calls: int | None = None
    ) -> Reply:
        """Make an act of a new instance from within a tool call. Its prompt has exactly the tokens up to the reply with
        the call, followed by `messages`. `max_calls` replaces the agent's `max_tool_calls`."""
        prompt, ask, spec = [*context.messages, *as_messages(messages)], self.spawned().draft, self.draft.agent.spec
        limited = replace(ask.agent, spec=replace(spec, max_tool_calls=max_calls or spec.max_tool_calls))
        ask = replace(ask, agent=limited, messages=prompt, tools=tools, continues=context.continues)
        return (await self._session.act(ask))[0]

    def conversation(self, messages: Prompt = (), *, system: str | None = None, tools: Tools = ()) -> Conversation:
        """Begin a new conversation of this agent. `system` and then `messages` come before its first prompt.

        The conversation is a separate instance, whose turns start at 0.
        """
        opening = [] if system is None else [{"role": "system", "content": system}]
        prompt = self._opening([*opening, *as_messages(messages)])
        return Conversation(self._session, self.spawned(), prompt, tools)

    def _opening(self, messages: Prompt) -> list[Message]:
        """Convert a prompt to messages. A configured system prompt replaces the system message of the workflow."""
        listed = as_messages(messages)
        prompt = self.draft.agent.spec.system_prompt
        if prompt is None:
            return listed
        rest = listed[1:] if listed and listed[0]["role"] == "system" else listed
        return [{"role": "system", "content": prompt}, *rest]


def _texts(stop: object) -> list[str]:
    """Return stop strings as a list. A setting is one string, a list of strings, or None."""
    return [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, list | tuple) else []


class Conversation(KnownNames):
    """Turns of one agent that share their tokens. They are one row, in which all prompts after the first are masked.

    A branch ends the row: the tokens before the branch become the prompt of each candidate and of the next row. A
    change of the temperature also ends the row, because all tokens of a row must come from one distribution.
    """

    def __init__(self, session: Session, agent: Agent, messages: list[Message], tools: Tools = ()):
        self._session, self._agent, self.messages, self._tools = session, agent, messages, tools
        self._state: Continuation | None = None
        self._temperature: object = None  # temperature of the open row, if its acts override the setting
        self._acting = False

    async def act(self, messages: Prompt = (), **sampling: object) -> Reply:
        """Extend the conversation by `messages`, and return the reply."""
        prompt = [*self.messages, *as_messages(messages)]
        same = sampling.get("temperature") == self._temperature
        state = self._state if same else self._state and replace(self._state, row=None)
        reply = (await self._act(prompt, sampling, 1, state))[0]
        self._continue_from(reply, row=reply.row)
        self._temperature = sampling.get("temperature")
        return reply

    async def branch(self, messages: Prompt = (), k: int | None = None, **sampling: object) -> list[Reply]:
        """Sample K candidates for the next turn. Commit one of them before the conversation continues."""
        prompt = [*self.messages, *as_messages(messages)]
        state = self._state and replace(self._state, row=None)
        return await self._act(prompt, sampling, self._session.candidates(k, self._agent.draft.line), state)

    def commit(self, replies: Sequence[Reply]) -> Reply:
        chosen = self._session.commit(replies)
        self._continue_from(chosen, row=None)
        return chosen

    async def _act(
        self, prompt: Sequence[Message], sampling: Mapping[str, object], n: int, state: Continuation | None
    ) -> list[Reply]:
        if "tools" in sampling:
            value = f"tools in an act of {self._agent.name}'s conversation"
            rule = "the first prompt of a conversation has the schemas of its tools"
            raise WorkflowError(value, rule=rule, fix="give them where it begins: conversation(tools=[...])")
        if self._acting:
            value, rule = f"two acts of {self._agent.name}'s conversation at once", "a turn follows the one before it"
            raise WorkflowError(value, rule=rule, fix="await one after the other, or begin a conversation for each")
        self._acting = True
        try:
            draft = self._agent.draft
            ask = replace(draft, messages=prompt, sampling=sampling, n=n, tools=self._tools, continues=state)
            return await self._session.act(ask)
        finally:
            self._acting = False

    def after(self, candidate: Reply, team: Team) -> Conversation:
        """Return a copy of this conversation that continues after one of its candidates. Acts of the copy belong to the
        line of `team`, which continues the same candidate."""
        twin = Conversation(self._session, team.twin(self._agent), self.messages, self._tools)
        twin._continue_from(candidate, row=None)
        return twin

    def _continue_from(self, reply: Reply, row: int | None) -> None:
        self.messages = [*reply.messages, *reply.steps]
        # A reply that was cut has no end-of-turn token, so its tokens cannot be continued. The next act tokenizes the
        # conversation again, as a new prompt.
        cut = reply.truncated and not reply.generation.full
        self._state = None if cut else Continuation(reply.generation, known=len(self.messages), row=row)


def as_messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    given: object = prompt
    if not isinstance(given, Sequence) or not all(isinstance(item, Mapping) and "role" in item for item in given):
        fix = 'give a text, such as reply.text, or [{"role": "user", "content": "..."}]'
        raise WorkflowError(f"a prompt is {prompt!r:.80}", rule="a prompt is a text or a list of messages", fix=fix)
    return list(prompt)


# -- copies of an environment's state: each continuation of a candidate starts from its own copy -----------------------


def restored(state: State, rng: random.Random | None = None) -> State:
    """Return an independent copy of `state`, by its `copy()` method if it has one. If the copy has a method `reseed`,
    it is reseeded from `rng`. Otherwise the copy would draw the same random numbers as the original, so its results
    would reveal the future of the session."""
    copied = _copied(state)
    if (copied is state or copied is None) and not isinstance(state, CONSTANTS):
        kind = type(state).__name__
        value = f"the copy of a state of type {kind} is {'the same object' if copied is state else copied}"
        rule = "a candidate continues from its own copy of the state, and the session from the original"
        fix = f"give {kind} a copy() that returns an independent copy, or none, for copy.deepcopy"
        raise WorkflowError(value, rule=rule, fix=fix)
    if rng is not None and (reseed := getattr(copied, "reseed", None)) is not None:
        reseed(rng)
    return copied


def _copied(state: State) -> State:
    # The copy() of a container is shallow, so containers are copied with copy.deepcopy.
    own = None if isinstance(state, CONTAINERS) else getattr(state, "copy", None)
    if callable(own):
        copied: State = own()
        return copied
    try:
        return copy.deepcopy(state)
    except (TypeError, copy.Error, NotImplementedError, RecursionError) as error:
        kind = type(state).__name__
        fix = f"give {kind} a copy() that returns an independent copy"
        if isinstance(state, CONTAINERS):
            fix = f"keep what cannot be copied out of the {kind}, or pass an object with a copy() of its own"
        rule = "a candidate continues from its own copy of the state"
        raise WorkflowError(f"a state of type {kind} cannot be copied: {error}", rule=rule, fix=fix) from error


@contextmanager
def untouched(state: object) -> Iterator[None]:
    """Raise WorkflowError if a container of `state` changed within the context. Such a change shows that a copy of the
    state shares the container with the original."""
    before = _contents(state)
    yield
    for name, content in _contents(state).items():
        if content != before.get(name):
            kind = type(state).__name__
            value = f"{kind}.{name} changed while a candidate continued from a copy of its {kind}"
            rule = "a copy of a state shares no part that changes"
            raise WorkflowError(value, rule=rule, fix=f"copy {name} with its contents in {kind}.copy()")


def _contents(state: object) -> dict[str, str]:
    """Return the `repr` of each attribute that is a container, by name."""
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(state, "__dict__", {}), *slots]
    values = {name: getattr(state, name, None) for name in names}
    return {name: repr(value) for name, value in values.items() if isinstance(value, CONTAINERS)}
