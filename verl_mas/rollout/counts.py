"""What a worker counts of its sessions, and the metrics that the counts of all workers make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from verl_mas.workflow.session import SessionResult


@dataclass(frozen=True)
class Reported:
    """A number that sessions reported: its sum, and how many of them did."""

    total: float
    sessions: int

    def __add__(self, other: Reported) -> Reported:
        return Reported(self.total + other.total, self.sessions + other.sessions)


@dataclass(frozen=True)
class SessionCounts:
    sessions: int = 0
    acts: int = 0
    seconds: float = 0.0
    dropped: int = 0
    retried: int = 0
    groups_given_up: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)  # by kind
    infos: Mapping[str, Reported] = field(default_factory=dict)  # the numbers of `Outcome.info` and of the scorer

    @classmethod
    def of(cls, finished: SessionResult) -> SessionCounts:
        session, failed = finished.session, finished.failed
        numbers = {} if failed else {k: v for k, v in session.info.items() if isinstance(v, int | float | np.number)}
        return cls(
            sessions=1,
            acts=len(session.replies),
            seconds=session.seconds,
            dropped=int(failed),
            retried=int(bool(finished.faults) and not failed),
            faults=Counter(fault.kind.value for fault in finished.faults),
            infos={name: Reported(float(value), 1) for name, value in numbers.items()},
        )

    def __add__(self, other: SessionCounts) -> SessionCounts:
        return SessionCounts(
            sessions=self.sessions + other.sessions,
            acts=self.acts + other.acts,
            seconds=self.seconds + other.seconds,
            dropped=self.dropped + other.dropped,
            retried=self.retried + other.retried,
            groups_given_up=self.groups_given_up + other.groups_given_up,
            faults=_add(self.faults, other.faults),
            infos=_add(self.infos, other.infos),
        )

    def metrics(self) -> dict[str, float]:
        sessions = max(1, self.sessions)
        given_up = {"session/groups_given_up": self.groups_given_up} if self.groups_given_up else {}
        return {
            **{f"session/{name}/mean": info.total / info.sessions for name, info in self.infos.items()},
            "session/count": self.sessions,
            "session/acts/mean": self.acts / sessions,
            "session/seconds/mean": self.seconds / sessions,
            "session/dropped": self.dropped,
            "session/retried": self.retried,
            **given_up,
            **{f"session/faults/{kind}": count for kind, count in self.faults.items()},
        }


V = TypeVar("V", int, Reported)


def _add(mine: Mapping[str, V], theirs: Mapping[str, V]) -> dict[str, V]:
    both = {name: mine[name] + theirs[name] for name in mine if name in theirs}
    return {**mine, **theirs, **both}
