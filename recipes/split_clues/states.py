"""The base of teams whose session is a sequence of states, where each act leads to the next state; and the codec of
their short messages."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, Literal, TypeVar

from verl_mas.config.values import Range
from verl_mas.errors import ConfigError
from verl_mas.util.loops import together
from verl_mas.workflow import Malformed, Outcome, Reply, Tag, Team, Workflow
from verl_mas.workflow.codecs import checked
from verl_mas.workflow.team import Prompt

State = TypeVar("State")


class States(Workflow, Generic[State]):
    """Workflow whose reward depends only on the last state of a session. A candidate that does not end the session is
    scored by its continuations. Override `over`, `actor`, `prompt`, `after`, `unsaid` and `outcome`, and call `play` in
    `run`. States are immutable."""

    continuations: Annotated[int, Range(0, 64)] = 0
    """Number of continuations of each candidate to the end of the session. The candidate's reward is the mean of their
    outcomes. 0: a candidate that does not end the session has the reward 0."""

    left_out: Annotated[int, Range(0, 64)] = 0
    """For each message of the session: the number of continuations in which no agent reads this message. The reward of
    the message is the session's reward minus the mean reward of these continuations. 0: the message gets the session's
    reward."""

    control: Literal["none", "all", "part"] = "none"
    """none: the team acts. all: the last agent acts alone, with the knowledge of all agents (the ceiling). part: the
    last agent acts alone, with its own part of the knowledge (the floor)."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few letters, for tiny models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, unset in (("continuations", 0), ("control", "none")):
            if self.left_out and (value := getattr(self, name)) != unset:
                value = f"mas.workflow.args.left_out={self.left_out} with {name}={value}"
                rule = "a message of a team is compared with its absence, and with nothing else"
                raise ConfigError(value, rule=rule, fix=f"set left_out=0, or {name}={unset}")

    @property
    def branches(self) -> bool:
        return not self.left_out

    @property
    def probes(self) -> bool:
        return self.continuations + self.left_out > 0

    @abstractmethod
    def over(self, state: State) -> bool: ...

    @abstractmethod
    def actor(self, state: State) -> str:
        """Return the agent that acts next."""

    @abstractmethod
    def prompt(self, state: State) -> str: ...

    def asked(self, state: State) -> Prompt:
        """Make the prompt for the agent that acts next: the text of `prompt`, with an image if the agent also sees
        one."""
        return self.prompt(state)

    @abstractmethod
    def after(self, reply: Reply, state: State) -> State:
        """Return the state after a reply to the prompt of `state`."""

    @abstractmethod
    def unsaid(self, state: State) -> State | None:
        """Return the state after an act whose message reaches no agent; None if the act is not a message."""

    @abstractmethod
    def outcome(self, state: State) -> Outcome:
        """Return the outcome of a state in which the session is over."""

    async def play(self, state: State, team: Team) -> Outcome:
        """Play from any state to the end."""
        silent: dict[Reply, State] = {}
        while not self.over(state):
            replies = await team[self.actor(state)].branch(self.asked(state), None if self.branches else 1)
            reached = {reply: self.after(reply, state) for reply in replies}
            if len(replies) > 1:
                await self._score(reached, team)
            reply = team.commit(replies)
            if self.left_out and (unsaid := self.unsaid(state)) is not None:
                silent[reply] = unsaid
            state = reached[reply]
        outcome = self.outcome(state)
        plays = [partial(team.without, reply, self._on, unsaid, self.left_out) for reply, unsaid in silent.items()]
        for reply, without in zip(silent, await together(plays), strict=True):
            if without is not None:
                reply.team_reward = (outcome.reward or 0.0) - without
        return outcome

    async def _on(self, team: Team, reply: Reply, state: State) -> Outcome:
        return await self.play(state, team)

    async def _score(self, reached: Mapping[Reply, State], team: Team) -> None:
        """Set the team rewards of candidates."""
        unknown = []
        for reply, state in reached.items():
            if self.over(state):
                reply.team_reward = self.outcome(state).reward
            elif self.probes:
                unknown.append(partial(team.continue_from, reply, self._on, state, self.continuations))
            else:
                reply.team_reward = 0.0
        await together(unknown)


@dataclass(frozen=True)
class Letters:
    """Codec of 1 to `at_most` letters of an alphabet, in upper or lower case, separated by spaces or commas."""

    alphabet: str
    at_most: int
    tag: str | None  # None: the whole reply is the letters

    def prompt(self) -> str:
        many = "one letter" if self.at_most == 1 else f"1 to {self.at_most} letters"
        place = f" between <{self.tag}> and </{self.tag}>" if self.tag else ""
        return f"Give {many} of {', '.join(self.alphabet)}{place}."

    def render(self, value: str) -> str:
        text = Tag(self.tag).render(" ".join(value)) if self.tag else value
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        body = Tag(self.tag).parse(text) if self.tag else text
        if isinstance(body, Malformed):
            return body
        letters = re.findall(r"\w", body.casefold())
        if not re.fullmatch(r"\s*(?:\w[\s,]*)+", body) or not set(letters) <= set(self.alphabet):
            return Malformed(f"{body[:40]!r} is not letters of {self.alphabet}")
        if len(letters) > self.at_most:
            return Malformed(f"{len(letters)} letters, not 1 to {self.at_most}")
        return "".join(letters)
