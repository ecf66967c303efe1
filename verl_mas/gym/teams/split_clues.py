"""Agents with different clues talk in turn; the last act answers. No single agent can know the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from verl_mas.config.values import Count, Range
from verl_mas.gym.split_clues import LETTERS, Clues, clues_of
from verl_mas.gym.states import States
from verl_mas.workflow import Malformed, Outcome, Reply, Task, Team, instances, register_workflow
from verl_mas.workflow.codecs.letters import Letters

# The last mark of a compact prompt: who writes a message, or that the answer is wanted.
SPEAKERS, ANSWER = "ABCD", "?"


@dataclass(frozen=True)
class Talk:
    """A conversation: the parts of those who speak in turn, what they read at the start, and what they have written."""

    answer: str
    parts: tuple[str, ...]
    hint: str
    acts: int
    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def last(self) -> bool:
        """Whether the next act answers."""
        return len(self.written) == self.acts - 1

    @property
    def speaker(self) -> int:
        return len(self.written) % len(self.parts)

    @property
    def part(self) -> str:
        """What the clues of the next speaker leave."""
        return self.parts[self.speaker]

    @property
    def messages(self) -> tuple[str, ...]:
        return self.read + self.written

    def after(self, letters: str | Malformed) -> Talk:
        """A message that cannot be read reaches the others empty."""
        return replace(self, written=(*self.written, "" if isinstance(letters, Malformed) else letters))


@register_workflow("split_clues")
class SplitClues(States[Talk]):
    """Agents write letters in turn, and each reads all messages before its own. The last act answers.

    The answer alone is rewarded: what a message is worth depends on the acts after it.
    """

    parts: Annotated[int, Range(2, 4)] = 2
    """The number of agents that have clues: `sender` and `receiver`, or `sender_0`, `sender_1`, ... and `receiver`."""

    rounds: Count = 1
    """How often each agent acts. From the second round on, senders have read what the others wrote."""

    control: Literal["none", "all", "part"] = "none"
    """none: the team. all, part: the receiver acts alone. It has all clues, which is the ceiling, or its own, which
    is the floor."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few letters, for tiny models."""

    @property
    def agents(self) -> Sequence[str]:
        senders = self.parts - 1
        return (*(("sender",) if senders == 1 else instances("sender", senders)), "receiver")

    async def run(self, task: Task, team: Team) -> Outcome:
        task_clues = clues_of(task.extra_info, task.ground_truth, self.parts)
        # The order of clues says nothing, and differs from session to session.
        order = random.Random(f"{task.extra_info.get('index')}/{task.step}/{task.session}")
        return await self.play(self.opening(task_clues, order), team)

    def opening(self, task: Clues, order: random.Random) -> Talk:
        parts = tuple("".join(order.sample(part, len(part))) for part in task.parts)
        if self.control == "none":
            return Talk(task.answer, parts, task.hint, self.rounds * self.parts)
        return Talk(task.answer, parts[-1:], task.hint, 1, read=parts[:-1] if self.control == "all" else ())

    def over(self, state: Talk) -> bool:
        return len(state.written) == state.acts

    def actor(self, state: Talk) -> str:
        return self.agents[state.speaker] if self.control == "none" else "receiver"

    def after(self, reply: Reply, state: Talk) -> Talk:
        letters = reply.parse(self.codec(state))
        return state.after(letters)

    def outcome(self, state: Talk) -> Outcome:
        right = float(state.written[-1] == state.answer)
        return Outcome(answer=state.written[-1], reward=right, info={"acc": right, "named": named(state)})

    def codec(self, state: Talk) -> Letters:
        tag = "answer" if state.last else "message"
        return Letters(LETTERS, 1 if state.last else len(state.part), None if self.text == "compact" else tag)

    def prompt(self, state: Talk) -> str:
        if self.text == "compact":
            hint = f"+{state.hint}" if state.hint else ""
            messages = "".join(f"|{message}" for message in state.messages)
            return f"{state.part}{hint}{messages}{ANSWER if state.last else SPEAKERS[state.speaker]}"
        return "\n\n".join([*_scene(state), self.codec(state).prompt()])


def named(talk: Talk) -> float:
    """The share of the senders' letters that their messages name."""
    written = [(talk.parts[turn % len(talk.parts)], message) for turn, message in enumerate(talk.written[:-1])]
    shares = [len(set(part) & set(message)) / len(part) for part, message in written]
    return sum(shares) / len(shares) if shares else 0.0


def _scene(talk: Talk) -> list[str]:
    lines = [
        f"One of the letters {', '.join(LETTERS)} is right. Each member of a team has different clues; only the right "
        "letter is left by the clues of all.",
        f"Your clues leave {', '.join(talk.part)}.",
    ]
    if talk.hint:
        lines.append(f"Everybody expects {talk.hint}, which may be wrong.")
    if talk.messages:
        listed = "\n".join(f"- {', '.join(message) or 'nothing that can be read'}" for message in talk.messages)
        lines.append(f"Messages of the team so far, oldest first:\n{listed}")
    lines.append("Which letter is right?" if talk.last else "Write to the others what helps them to find it.")
    return lines
