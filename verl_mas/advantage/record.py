"""Input and output of an estimator, and the scores that are kept from one step to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

from verl_mas.advantage.kernel import GroupStats, Partition, Prior, compact, moments, part_of_group
from verl_mas.errors import DataError
from verl_mas.util.later import Tensor, np, pd, torch
from verl_mas.verl_.row import Act, RowKey, RowTags

# The weight of earlier scores is multiplied by this factor in each step, so they average over about ten steps.
RUNNING_DECAY = 0.9
# A label is a name or a number.
Label: TypeAlias = Any
Labels: TypeAlias = "Sequence[Label] | np.ndarray | Tensor"


class Codes(NamedTuple):
    """A column as integers [N], and the label for which each integer stands."""

    ids: Tensor
    names: Sequence[Label]


@dataclass(frozen=True, eq=False)
class AdvantageInput:
    """Input of an estimator: all rows of a step. Labels are lists, arrays or integer tensors of length N."""

    scores: Tensor  # [N], the row's own score: all its parts together
    task: Labels
    session: Labels  # distinct within a task
    agent: Labels
    role: Labels | None = None
    source: Labels | None = None  # the task's data source
    instance: Labels | None = None  # number of the spawned agent or conversation, else 0
    turn: Labels | None = None  # 0-based index of the acts of the agent's instance
    branch: Labels | None = None  # 0..K-1 where K replies were sampled from one prompt, else 0
    observation: Labels | None = None  # key of what the agent saw; equal keys mean equal observations
    prompt: Labels | None = None  # any key of the prompt's tokens, such as their hash
    committed: Labels | None = None  # bool: whether the session continued with this candidate
    team_reward: Tensor | None = None  # [N], a part of the score, weighted by team_weight
    local_reward: Tensor | None = None  # [N], the second part, weighted by local_weight: reward of the row's own acts
    penalty: Tensor | None = None  # [N], subtracted from the sum of these two parts
    team_weight: float = 1.0
    local_weight: float = 1.0
    tokens: Tensor | None = None  # [N], number of the row's trained tokens: the sum of its response mask
    padding: Tensor | None = None  # [N] bool: a padding row is ignored, and gets advantage 0
    agents: Sequence[str] | None = None  # the names that `agent` may hold; None: any
    running: RunningScores | None = None  # scores of earlier steps, for an estimator that reads them
    tags: Mapping[str, Labels] = field(default_factory=dict)  # further columns: tags of acts that have no field here
    _codes: dict[str, Codes] = field(default_factory=dict, init=False, repr=False)
    _partitions: dict[tuple[str, ...], Partition] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or not self.scores.is_floating_point():
            value = f"scores are {self.scores.dtype} of shape {tuple(self.scores.shape)}"
            fix = "sum token rewards over the last dimension first"
            raise DataError(value, rule="there is one real score per row", fix=fix)
        columns = {name: getattr(self, name) for name in (*_GIVEN, "tokens", "padding")}
        for name, column in {**columns, **self.tags}.items():
            if column is not None and len(column) != len(self):
                value = f"{name} has {len(column)} rows, scores has {len(self)}"
                fix = f"give {name} for the same rows as scores"
                raise DataError(value, rule="every column has one value per row", fix=fix)
        if self.padding is not None and self.padding.dtype != torch.bool:
            value = f"padding is {self.padding.dtype}"
            raise DataError(value, rule="padding is a bool per row", fix="use padding.bool()")

    @classmethod
    def of(cls, keys: Sequence[RowKey], tags: Sequence[RowTags], scores: Tensor) -> AdvantageInput:
        """Make the columns of stored rows, except `tokens`, which the caller sets."""
        read: dict[str, Label] = {f.name: [getattr(tag, f.name) for tag in tags] for f in fields(Act)}
        read |= {name: torch.tensor([getattr(tag, name) for tag in tags], dtype=torch.float64) for name in PARTS}
        observation = torch.tensor([tag.observation for tag in tags])
        return cls(
            scores,
            task=[key.uid for key in keys],
            session=[key.session for key in keys],
            source=[tag.source for tag in tags],
            committed=[tag.committed for tag in tags],
            observation=observation,
            prompt=observation,
            tags={name: column for name, column in read.items() if name not in _GIVEN},
            **{name: column for name, column in read.items() if name in _GIVEN},
        )

    def __len__(self) -> int:
        return self.scores.shape[0]

    def select(self, rows: Tensor) -> AdvantageInput:
        """Make the same record for some of its rows."""
        taken: dict[str, Label] = {
            name: _take(getattr(self, name), rows) for name in ("scores", *_GIVEN, "tokens", "padding")
        }
        tags: dict[str, Label] = {name: _take(column, rows) for name, column in self.tags.items()}
        return replace(self, tags=tags, **taken)

    def with_scores(self, scores: Tensor) -> AdvantageInput:
        """Make a record of the same rows with other scores, in the same groups."""
        other = replace(self, scores=scores)
        vars(other).update(_codes=self._codes, _partitions=self._partitions)
        return other

    def given(self, column: str) -> Label:
        """Return a column that an estimator needs, or raise DataError."""
        values = getattr(self, column) if column in _GIVEN else self.tags.get(column)
        if values is None:
            rule = f"this estimator reads the {column} of a row"
            fix = f"fill AdvantageInput.{column} (the trainer of +mas=<team> does), or choose another estimator"
            raise DataError(f"the rows have no {column}", rule=rule, fix=fix)
        return values

    def codes(self, column: str) -> Codes:
        """Convert a label column to integers. A missing label is an error that names the row."""
        if column in self._codes:
            return self._codes[column]
        labels = self.given(column)
        if isinstance(labels, torch.Tensor):
            labels = labels.cpu().numpy()
        if not isinstance(labels, np.ndarray):  # numpy would turn a missing text label into "nan"
            labels = pd.Series(labels, dtype=object).to_numpy()
        ids, unique = pd.factorize(labels)
        if (ids < 0).any():
            row, rule = int((ids < 0).argmax()), f"every row names its {column}"
            fix = "tag the row where it is made, or mark it as padding"
            raise DataError(f"row {row} has no {column}", rule=rule, fix=fix)
        self._codes[column] = Codes(torch.from_numpy(ids).to(self.scores.device), unique.tolist())
        return self._codes[column]

    def numbers(self, column: str) -> Tensor:
        """Convert a column of integers to a tensor [N]."""
        ids, names = self.codes(column)
        return torch.tensor(names, dtype=torch.long, device=ids.device)[ids]

    def partition(self, *columns: str) -> Partition:
        """Partition the rows by equal values in all of the columns."""
        if columns in self._partitions:
            return self._partitions[columns]
        key = torch.zeros(len(self), dtype=torch.long, device=self.scores.device)
        span = 1
        for column in columns:
            ids, names = self.codes(column)
            if span * max(1, len(names)) >= 2**63:
                smaller = compact(key)
                key, span = smaller.ids, smaller.count
            key, span = key * len(names) + ids, span * max(1, len(names))
        self._partitions[columns] = compact(key, span)
        return self._partitions[columns]

    def by_role(self) -> AdvantageInput:
        """Make the same record with roles in place of agents; the agents of a role become its instances."""
        if self.role is None:
            rule = "mas.advantage.by=role compares the agents of a role with each other"
            fix = "fill AdvantageInput.role (the trainer of +mas=<team> does), or set mas.advantage.by=agent"
            raise DataError("the rows have no role", rule=rule, fix=fix)
        instance = self.partition("agent", *self.existing("instance")).ids
        return replace(self, agent=self.role, instance=instance, agents=None)

    def existing(self, *columns: str) -> tuple[str, ...]:
        """Return the columns that the rows have."""
        return tuple(column for column in columns if getattr(self, column) is not None)

    def refuse(
        self, wrong: Tensor, problem: str, columns: Sequence[str], values: Tensor | None = None, **error: str
    ) -> None:
        """Raise DataError for the first wrong row, if any row is wrong. `columns` identify the row, and `problem` may
        contain a placeholder {} for the row's value in `values`. `error`: rule and fix."""
        for row in wrong.nonzero()[:1].flatten().tolist():
            coded = {column: self.codes(column) for column in columns}
            place = ", ".join(f"{column} {names[int(ids[row])]!r}" for column, (ids, names) in coded.items())
            value = "" if values is None else values[row].item()
            raise DataError(f"{place} {problem.format(value)}", **error)


COLUMNS = tuple(f.name for f in fields(AdvantageInput) if str(f.type).startswith("Labels"))
PARTS = ("team_reward", "local_reward", "penalty")
_GIVEN = (*COLUMNS, *PARTS)


@dataclass(frozen=True, eq=False)
class AdvantageOutput:
    """Output of an estimator: advantages [N], the groups that were compared, and metrics.

    `compute_advantages` returns the advantages as float32, and those of padding rows are 0.
    """

    advantages: Tensor
    groups: Partition
    stats: GroupStats
    metrics: dict[str, float] = field(default_factory=dict)


def _take(column: Labels | None, rows: Tensor) -> Labels | None:
    if column is None:
        return None
    if isinstance(column, torch.Tensor):
        return column[rows.to(column.device)]
    chosen = rows.cpu().numpy()
    return column[chosen] if isinstance(column, np.ndarray) else [column[row] for row in chosen]


@dataclass(frozen=True)
class Owner:
    """A role on one data source, whose scores are kept. The same role on another source is another owner."""

    source: str
    role: str


@dataclass(frozen=True)
class Moments:
    """Mass (weighted number), mean and variance of scores."""

    mass: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def decayed(self, decay: float) -> Moments:
        return Moments(self.mass * decay, self.mean, self.variance)

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both sets of scores together."""
        mass = self.mass + other.mass
        if mass == 0:
            return Moments()
        distance, share = other.mean - self.mean, other.mass / mass
        within = self.variance + (other.variance - self.variance) * share
        return Moments(mass, self.mean + distance * share, within + distance**2 * share * (1 - share))


NOTHING = Moments()


class RunningScores:
    """Exponentially weighted mass, mean and variance of every role's scores, per data source.

    At a step in which a role acts, its earlier scores are weighted by `decay` and the step's scores are added. The
    weights of all scores in a mean sum to 1 from the first step on, so the mean is not biased towards 0.
    """

    def __init__(self, scores: Mapping[Owner, Moments] | None = None):
        self.scores = dict(scores or {})

    def prior(self, batch: AdvantageInput, groups: Partition, decay: float, most: float | None = None) -> Prior:
        """Make the prior of each group from the scores of its role before this step, with a mass of at most `most`."""
        owners = owners_of(batch)
        known = [self.scores.get(owner, NOTHING).decayed(decay) for owner in _names(batch, owners)]
        columns = torch.tensor([[m.mass, m.mean, m.variance] for m in known], dtype=torch.float64)
        by_group = columns.to(batch.scores.device).reshape(-1, 3)[part_of_group(groups, owners)]
        mass, mean, variance = by_group.unbind(1)
        return Prior(mass if most is None else mass.clamp_max(most), mean, variance)

    def add(self, batch: AdvantageInput, weight: Tensor | None, decay: float) -> None:
        """Add the scores of a step. `weight`: how often each row counts (default: once)."""
        owners = owners_of(batch)
        _, mass, stats = moments(batch.scores.double(), owners, "population", weight)
        columns = (mass.tolist(), stats.mean.tolist(), stats.std.square().tolist())
        for owner, *scores in zip(_names(batch, owners), *columns, strict=True):
            self.scores[owner] = self.scores.get(owner, NOTHING).decayed(decay).joined(Moments(*scores))

    def metrics(self) -> dict[str, float]:
        """Return the metrics `advantage/<role>/running_{mean,std,count}` of each role over all data sources."""
        roles: dict[str, Moments] = {}
        for owner, known in self.scores.items():
            roles[owner.role] = roles.get(owner.role, NOTHING).joined(known)
        return {
            f"advantage/{role}/running_{name}": value
            for role, known in roles.items()
            for name, value in (("mean", known.mean), ("std", known.variance**0.5), ("count", known.mass))
        }

    def to_list(self) -> list[dict[str, str | float]]:
        """Convert the scores for JSON, in which Python keeps every bit of a float64."""
        return [{**asdict(owner), **asdict(known)} for owner, known in self.scores.items()]

    @classmethod
    def from_list(cls, entries: Iterable[Mapping[str, str | float]]) -> RunningScores:
        """Read the result of `to_list`. Raises TypeError, KeyError or ValueError for anything else."""
        scores = {}
        for entry in entries:
            owner = Owner(*(str(entry[part.name]) for part in fields(Owner)))
            scores[owner] = Moments(*(float(entry[part.name]) for part in fields(Moments)))
        return cls(scores)


def owner_columns(batch: AdvantageInput) -> tuple[str, ...]:
    """Return the columns that distinguish owners. Without roles, every agent is its own role."""
    role = "agent" if batch.role is None else "role"
    return (role,) if batch.source is None else ("source", role)


def owners_of(batch: AdvantageInput) -> Partition:
    return batch.partition(*owner_columns(batch))


def _names(batch: AdvantageInput, owners: Partition) -> list[Owner]:
    """Return the owner of every part, read from one row of the part."""
    rows = part_of_group(owners, Partition(torch.arange(len(batch), device=owners.ids.device), len(batch)))
    labels = [[str(names[i]) for i in ids[rows].tolist()] for ids, names in map(batch.codes, owner_columns(batch))]
    source = labels[0] if len(labels) == 2 else [""] * owners.count
    return [Owner(*pair) for pair in zip(source, labels[-1], strict=True)]
