"""A task of the evidence: groups of arms that are compared, and claims about the arms."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.evidence.arms import Arm
from benchmarks.evidence.claims import Claim


@dataclass(frozen=True)
class Group:
    """Arms that share the table `name` of the page. The table has each arm's difference from the first arm."""

    name: str
    arms: tuple[Arm, ...]
    controls: tuple[str, ...] = ()
    # Whether the page shows the share of each agent's signal that would remain with one baseline for the team.
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
