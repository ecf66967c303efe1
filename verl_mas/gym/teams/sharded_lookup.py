"""Two steps through a table that no window holds: workers read a shard each, a leader combines what they report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.config.values import Count
from verl_mas.errors import ConfigError
from verl_mas.gym.lookup import SYMBOLS, shards_of
from verl_mas.workflow import Malformed, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.codecs.base import checked
from verl_mas.workflow.team import Prompt
from verl_mas.workflows.leader_workers import Answer, Delegating, Delegation, Move

# The last word but one of a prompt, from which a tiny model that has all roles knows which one to play.
LEADER, WORKER, READER = "$", "!", "?"
# A reply that nothing was found; what the leader reads in place of one that is malformed; before an answer.
NOTHING, UNREADABLE, FINAL = "-", "#", "="


@dataclass(frozen=True)
class Symbols:
    """1 to `at_most` symbols, separated by blanks, or `-` for none. A blank comes first, as before every word of a
    prompt, so that a word is the same token in both."""

    at_most: int = 1

    def prompt(self) -> str:
        return f"Write {self._many}, or {NOTHING}."

    @property
    def _many(self) -> str:
        return "one letter" if self.at_most == 1 else f"1 to {self.at_most} letters"

    def render(self, value: Sequence[str]) -> str:
        text = "".join(f" {word}" for word in value) or f" {NOTHING}"
        return checked(text, list(value), self.parse(text))

    def parse(self, text: str) -> list[str] | Malformed:
        words = text.split()
        if words == [NOTHING]:
            return []
        if not 1 <= len(words) <= self.at_most or not all(len(word) == 1 and word in SYMBOLS for word in words):
            return Malformed(f"{text[:40]!r} is not {self._many} or {NOTHING!r}")
        return words


@dataclass(frozen=True)
class LookupMoves:
    """Symbols to look up, ` a b`, or the answer, ` = a`."""

    at_most: int
    """Symbols to look up; 0: only an answer is read."""

    def prompt(self) -> str:
        return f"Write 1 to {self.at_most} letters to look up, or {FINAL} and the answer."

    def render(self, value: Move) -> str:
        words = [FINAL, value.text] if isinstance(value, Answer) else value.subtasks
        text = "".join(f" {word}" for word in words)
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> Move | Malformed:
        words = text.split()
        final = words[:1] == [FINAL]
        found = Symbols(1 if final else self.at_most).parse(" ".join(words[final:]))
        if isinstance(found, Malformed):
            return found
        if not found:
            return Malformed("no letter")
        return Answer(found[0]) if final else Delegation(tuple(found))


@register_workflow("sharded_lookup")
class ShardedLookup(Delegating):
    """A worker per symbol to look up and shard. Prompts are of a few words, for tiny models."""

    max_rounds: Count = 2
    max_workers: Count = 8

    async def run(self, task: Task, team: Team) -> Outcome:
        shards = shards_of(task.extra_info)
        if len(shards) > self.max_workers:
            raise ConfigError(
                f"mas.workflow.args.max_workers={self.max_workers} with a table of {len(shards)} shards",
                rule="a symbol is looked up by a worker per shard",
                fix=f"set ++mas.workflow.args.max_workers={len(shards)} or more",
            )
        played = await self.play(task, team)
        right = float(played.answer == task.ground_truth)
        return Outcome(answer=played.answer or "", reward=right, info={"acc": right, **played.info})

    def moves(self, task: Task, left: int) -> LookupMoves:
        return LookupMoves(self.max_workers // len(shards_of(task.extra_info)) if left else 0)

    def opening(self, task: Task) -> Prompt:
        return f" {LEADER} {task.question}"

    def prompts(self, task: Task, delegation: Delegation) -> list[Prompt]:
        shards = shards_of(task.extra_info)
        return [f" {shard} {WORKER} {symbol}" for symbol in delegation.subtasks for shard in shards]

    def report(self, reply: Reply) -> str:
        found = reply.parse(Symbols())
        return UNREADABLE if isinstance(found, Malformed) else found[0] if found else NOTHING

    def following(self, task: Task, move: Delegation | Malformed, reports: Sequence[str], left: int) -> Prompt:
        return " " + (" ".join(reports) or UNREADABLE)
