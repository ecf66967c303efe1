"""What is remembered from one step to the next: the moments of every role's scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from verl_mas.advantage.kernel import Partition, Prior, moments, part_of_group

if TYPE_CHECKING:
    from verl_mas.advantage.record import AdvantageInput

# What remains of the weight of earlier scores at each step: they are those of some ten steps.
RUNNING_DECAY = 0.9


@dataclass(frozen=True)
class Owner:
    """Whose scores they are. On data of another source a role is another owner."""

    source: str
    role: str


@dataclass(frozen=True)
class Moments:
    """How many scores there are, their mean, and their mean squared deviation from it."""

    mass: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def decayed(self, decay: float) -> Moments:
        return Moments(self.mass * decay, self.mean, self.variance)

    def joined(self, other: Moments) -> Moments:
        """The moments of both together."""
        mass = self.mass + other.mass
        if mass == 0:
            return Moments()
        distance, share = other.mean - self.mean, other.mass / mass
        within = self.variance + (other.variance - self.variance) * share
        return Moments(mass, self.mean + distance * share, within + distance**2 * share * (1 - share))


NOTHING = Moments()


class RunningScores:
    """Of every role's scores, per data source: exponentially weighted mass, mean and variance.

    At a step in which a role acts, what it had before counts `decay` times as much, and the step's scores are joined to
    it. The weights of all scores in a mean sum to 1 from the first step on, so nothing draws it to 0.
    """

    def __init__(self, scores: Mapping[Owner, Moments] | None = None):
        self.scores = dict(scores or {})

    def prior(self, batch: AdvantageInput, groups: Partition, decay: float, most: float | None = None) -> Prior:
        """What each group is joined with: the scores of its role before this step, with a mass of at most `most`."""
        owners = owners_of(batch)
        known = [self.scores.get(owner, NOTHING).decayed(decay) for owner in _names(batch, owners)]
        mass, mean, variance = (
            torch.tensor(
                [[found.mass, found.mean, found.variance] for found in known],
                dtype=torch.float64,
                device=batch.scores.device,
            )
            .reshape(-1, 3)[part_of_group(groups, owners)]
            .unbind(1)
        )
        return Prior(mass if most is None else mass.clamp_max(most), mean, variance)

    def add(self, batch: AdvantageInput, weight: Tensor | None, decay: float) -> None:
        """Take in the scores of a step. `weight` is how often each row counts (default once)."""
        owners = owners_of(batch)
        _, mass, stats = moments(batch.scores.double(), owners, "population", weight)
        columns = (mass.tolist(), stats.mean.tolist(), stats.std.square().tolist())
        for owner, *found in zip(_names(batch, owners), *columns, strict=True):
            self.scores[owner] = self.scores.get(owner, NOTHING).decayed(decay).joined(Moments(*found))

    def metrics(self) -> dict[str, float]:
        """`advantage/<role>/running_{mean,std,count}`, over all data sources."""
        roles: dict[str, Moments] = {}
        for owner, found in self.scores.items():
            roles[owner.role] = roles.get(owner.role, NOTHING).joined(found)
        return {
            f"advantage/{role}/running_{name}": value
            for role, found in roles.items()
            for name, value in (("mean", found.mean), ("std", found.variance**0.5), ("count", found.mass))
        }

    def to_list(self) -> list[dict[str, str | float]]:
        """For JSON, in which Python keeps every bit of a float64."""
        return [{**asdict(owner), **asdict(found)} for owner, found in self.scores.items()]

    @classmethod
    def from_list(cls, entries: Iterable[Mapping[str, str | float]]) -> RunningScores:
        """Raises TypeError, KeyError or ValueError where it is given something else than `to_list` returns."""
        return cls(
            {
                Owner(*(str(entry[part.name]) for part in fields(Owner))): Moments(
                    *(float(entry[part.name]) for part in fields(Moments))
                )
                for entry in entries
            }
        )


def owner_columns(batch: AdvantageInput) -> tuple[str, ...]:
    """The columns that tell owners apart. Without roles an agent is a role of its own."""
    role = "agent" if batch.role is None else "role"
    return (role,) if batch.source is None else ("source", role)


def owners_of(batch: AdvantageInput) -> Partition:
    return batch.partition(*owner_columns(batch))


def _names(batch: AdvantageInput, owners: Partition) -> list[Owner]:
    """Of every part, read from one of its rows."""
    count = len(batch)
    row = owners.ids.new_empty(owners.count).index_copy_(0, owners.ids, torch.arange(count, device=owners.ids.device))
    labels = []
    for column in owner_columns(batch):
        ids, names = batch.codes(column)
        labels.append([str(names[i]) for i in ids[row].tolist()])
    source = labels[0] if len(labels) == 2 else [""] * owners.count
    return [Owner(*pair) for pair in zip(source, labels[-1], strict=True)]
