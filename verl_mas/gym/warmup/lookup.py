"""Demonstrations of looking up two steps in a table, by a team and by one agent, with errors at a set rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym.lookup import CUT, HOPS, SHARDS, SYMBOLS, draw, successors
from verl_mas.gym.teams.sharded_lookup import READER, WORKER, LookupMoves, Symbols
from verl_mas.gym.warmup.demonstrations import Lesson, demonstrate
from verl_mas.testing.tiny_model import TURN_END
from verl_mas.workflow import Message, Request, Task
from verl_mas.workflow.base import resolve
from verl_mas.workflows.leader_workers import Answer, Delegation

# The share of lessons in which there is nothing to find that are kept: they are most acts of a session, and alike.
_NOTHING = 0.4


def lessons(shards: int, keys: int, *, noise: float, worker_noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless. `noise` is the share of wrong replies of the leader, `worker_noise` that of workers and of readers."""
    rng = random.Random(f"lookup lessons {seed}")
    experts = Experts(shards * keys, noise, worker_noise, rng)
    teams = [
        resolve(WorkflowSpec("sharded_lookup", args={"max_workers": shards})),
        resolve(WorkflowSpec("single_reader", args={"window": "shard"})),
        resolve(WorkflowSpec("single_reader", args={"window": "all"})),
    ]
    while True:
        table, asked = draw(shards, keys, rng)
        task = Task([{"role": "user", "content": asked}], extra_info={SHARDS: CUT.join(table.shards)})
        for team in teams:
            for lesson in demonstrate(team, task, experts):
                if lesson.agent == "leader" or found(lesson.prompt) or rng.random() < _NOTHING:
                    # verl ends a turn of a conversation with a line break, whatever the chat template.
                    yield replace(lesson, prompt=lesson.prompt.replace(TURN_END, f"{TURN_END}\n"))


class Experts:
    """Every role. A wrong reply names random symbols of those that could be right."""

    def __init__(self, size: int, noise: float, worker_noise: float, rng: random.Random):
        self._symbols = SYMBOLS[:size]
        self._noise, self._worker_noise, self._rng = noise, worker_noise, rng

    def __call__(self, request: Request) -> str:
        if request.agent == "leader":
            return self._lead(request.messages)
        prompt = request.messages[-1]["content"]
        right = found(prompt)
        if self._rng.random() >= self._worker_noise:
            return Symbols(HOPS).render(right)
        values = list(window(prompt)[0].values())
        return Symbols(HOPS).render([self._rng.choice(values) for _ in right or "-"])

    def _lead(self, messages: Sequence[Message]) -> str:
        """Looks up what was found last: one of several if they contradict each other."""
        reported = [word for word in messages[-1]["content"].split() if word in self._symbols]
        symbol = self._rng.choice(reported or self._symbols)
        if self._rng.random() < self._noise:
            symbol = self._rng.choice(self._symbols)
        delegations = sum(message["role"] == "assistant" for message in messages)
        move = Delegation((symbol,)) if delegations < HOPS else Answer(symbol)
        return LookupMoves(at_most=1).render(move)


def window(prompt: str) -> tuple[dict[str, str], str, list[str]]:
    """What a worker or reader reads: the successors of its shards, its role, and the symbols after it."""
    shards, role, notes = prompt.partition(WORKER) if WORKER in prompt else prompt.partition(READER)
    return successors(shards), role, notes.split()


def found(prompt: str) -> list[str]:
    """What a worker or reader is to reply: the successor of the last symbol of its prompt and, for a reader, the next
    one, as far as the shards of the prompt have them."""
    following, role, notes = window(prompt)
    wanted = 1 if role == WORKER else HOPS + 1 - len(notes)
    right: list[str] = []
    while len(right) < wanted and (symbol := following.get([*notes, *right][-1])):
        right.append(symbol)
    return right
