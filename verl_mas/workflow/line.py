"""A line is a path through a session: the main path, a path of probes, or a path that continues a forked candidate."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.workflow.reply import Reply


@dataclass
class Line:
    """A path through a session. Each line counts the acts and instances of its agents, so that parallel lines do not
    change the numbers of each other."""

    # Seed of the session. Each line draws its own random numbers, so acts of other lines do not change them.
    seed: str = ""
    name: str = ""  # empty for the main path; unique in the session
    # Index of the forked candidate that this line continues. Acts of the line have this index as their branch. They
    # are trained on, unless the line is a probe.
    fork: int | None = None
    probe: bool = False  # True if the acts of this line are probes, which are neither stored nor trained on
    replies: list[Reply] = field(default_factory=list)  # acts of this line so far, without acts from before its start
    # True after candidates of this line were forked. The session then continues on the forks, whose acts continue the
    # numbering of this line.
    over: bool = False
    _turns: Counter[tuple[str, int]] = field(default_factory=Counter)
    _instances: Counter[str] = field(default_factory=Counter)

    @property
    def alone(self) -> bool:
        """Whether each act of this line has a single candidate, as in probes and in continuations of forked
        candidates."""
        return self.probe or self.fork is not None

    @property
    def spawned(self) -> int:
        return sum(self._instances.values())

    def next_turn(self, agent: str, instance: int) -> int:
        turn = self._turns[agent, instance]
        self._turns[agent, instance] += 1
        return turn

    def new_instance(self, agent: str) -> int:
        """Return the number of a new instance. Numbers start at 1, since the agent itself is instance 0."""
        self._instances[agent] += 1
        return self._instances[agent]

    def random(self, name: str) -> random.Random:
        """Return a generator of random numbers for one purpose, with the same seed whenever the session is repeated."""
        return random.Random(f"{self.seed}/{self.name}/{name}")

    def probing(self, name: str = "probe") -> Line:
        """Copy this line for acts that are not trained on. `name` distinguishes the copy from other lines."""
        return self._copy(self.fork, name, probe=True)

    def forked(self, candidate: int, name: str = "fork") -> Line:
        """Copy this line to continue a forked candidate. The acts are trained on, unless this line is a probe."""
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
