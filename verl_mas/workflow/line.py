"""A line of play: the course of a session, or that of one of its candidates, which is played on beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """Counts the acts and instances of every agent, so that lines in parallel do not change each other's numbers."""

    # The candidate of a fork that is played on; its acts are trained on, as the candidate's own branch.
    fork: int | None = None
    # Its acts are played by the current weights, and take part in nothing: they are not stored.
    probe: bool = False
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

    def probing(self) -> Line:
        """The same, to be played on by acts that nothing is learned from."""
        return self._copy(self.fork, probe=True)

    def forked(self, candidate: int) -> Line:
        """The same, to be played on after this candidate."""
        return self._copy(candidate, probe=self.probe)

    def _copy(self, fork: int | None, *, probe: bool) -> Line:
        return Line(fork, probe, Counter(self._turns), Counter(self._instances))
