"""What a task of the evidence is: groups of arms that are compared, and claims about them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.evidence.arms import Arm
from benchmarks.evidence.claims import Claim


@dataclass(frozen=True)
class Group:
    """Arms that share a table, which is named `name` in the page; differences are from the first."""

    name: str
    arms: tuple[Arm, ...]
    controls: tuple[str, ...] = ()
    # Whether the page shows what one baseline would leave of each agent's signal.
    signals: bool = False


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    groups: tuple[Group, ...]
    claims: tuple[Claim, ...] = ()
    # The arms that the gate runs again every night.
    gated: tuple[Arm, ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(dict.fromkeys(arm for group in self.groups for arm in group.arms))
