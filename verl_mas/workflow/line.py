"""A line of play: the course of a session, or that of one of its candidates, which is played on beside it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.workflow.reply import Reply


@dataclass
class Line:
    """Counts the acts and instances of every agent, so that lines in parallel do not change each other's numbers."""

    # Of the session's random numbers. Each line has its own, which the acts of other lines do not change.
    seed: str = ""
    name: str = ""  # empty for the session itself; no two lines of a session have the same
    # The candidate of a fork that is played on; its acts are trained on, as the candidate's own branch.
    fork: int | None = None
    probe: bool = False  # its acts are played by the current weights, and take part in nothing: they are not stored
    replies: list[Reply] = field(default_factory=list)  # its acts so far, without those before it began
    # Candidates of it were forked: what follows is on their lines, whose acts have the numbers that its own would have.
    over: bool = False
    _turns: Counter[tuple[str, int]] = field(default_factory=Counter)
    _instances: Counter[str] = field(default_factory=Counter)

    @property
    def alone(self) -> bool:
        """Whether every act has one candidate: those of a candidate that is played on."""
        return self.probe or self.fork is not None

    @property
    def spawned(self) -> int:
        return sum(self._instances.values())

    def next_turn(self, agent: str, instance: int) -> int:
        turn = self._turns[agent, instance]
        self._turns[agent, instance] += 1
        return turn

    def new_instance(self, agent: str) -> int:
        """From 1: the acts of the agent itself are those of instance 0."""
        self._instances[agent] += 1
        return self._instances[agent]

    def random(self, name: str) -> random.Random:
        """Random numbers for one purpose, the same whenever the session is repeated."""
        return random.Random(f"{self.seed}/{self.name}/{name}")

    def probing(self, name: str = "probe") -> Line:
        """The same, to be played on by acts that nothing is learned from. `name` tells it from other lines."""
        return self._copy(self.fork, name, probe=True)

    def forked(self, candidate: int, name: str = "fork") -> Line:
        """The same, to be played on after this candidate."""
        return self._copy(candidate, f"{name}/{candidate}", probe=self.probe)

    def _copy(self, fork: int | None, name: str, *, probe: bool) -> Line:
        return Line(
            self.seed,
            f"{self.name}/{name}",
            fork,
            probe,
            _turns=Counter(self._turns),
            _instances=Counter(self._instances),
        )
