"""What a run of the evidence is: a task, an arm of it, and a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = 5


@dataclass(frozen=True)
class Start:
    """The command that creates tasks and a warmed-up model, as the results record it."""

    name: str
    command: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """`verl-mas <arguments> --out FOLDER --seed SEED` does it. Results record the former `verl-mas puzzle`."""
        if self.command[0] != "puzzle":
            return self.command
        renamed = {"--train": "--train-rows", "--test": "--test-rows"}
        return ("data", *(renamed.get(word, word) for word in self.command))


@dataclass(frozen=True)
class Trial:
    """The settings and metrics that all arms of a task share."""

    name: str
    steps: int
    # The metric of success, and those of the controls, which the same validation measures.
    success: str
    settings: tuple[str, ...]
    controls: Mapping[str, str] = field(default_factory=dict)
    # Where several teams play in one run: the metric of this team's tokens per session.
    tokens: str = ""
    # The file of held-out tasks that a start has.
    held_out: str = "test.parquet"
    # The agents' own policies, where an arm or an evaluation has one per agent.
    per_role: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Training:
    """One arm: a run of `verl.trainer.main_ppo` from the seed's warmed-up model."""

    name: str
    trial: Trial
    start: Start
    workflow: str
    overrides: tuple[str, ...] = ()
    # Whether the policies are saved, for evaluations.
    keeps: bool = False
    # With `verl_mas`'s CPU platform, or on a GPU.
    on_gpu: bool = False
    seeds: int = SEEDS
    # The arm whose run also has this arm's numbers, because several teams play in that run.
    within: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Played:
    """A trained policy that plays a role in an evaluation. `later`: the policy is that of the next seed."""

    arm: str
    policy: str
    later: bool = False


@dataclass(frozen=True)
class Evaluation:
    """A validation of trained policies, by role."""

    name: str
    trial: Trial
    start: Start
    workflow: str
    roles: Mapping[str, Played]
    seeds: int = SEEDS

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(played.arm for played in self.roles.values()))


Arm = Training | Evaluation


def using(estimator: str, *options: str) -> tuple[str, ...]:
    """Return the overrides that choose an estimator and its options."""
    return (f"algorithm.adv_estimator={estimator}", *(f"++mas.advantage.{option}" for option in options))


@dataclass(frozen=True)
class Piece:
    """One run: an arm with a seed."""

    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        return f"{self.arm.name}-{self.seed}"

    def partner(self, played: Played) -> int:
        """The seed of the policy that plays a role."""
        return (self.seed + played.later) % self.arm.seeds


def by_seeds(*arms: Arm) -> Iterator[Piece]:
    """Seed by seed, so that all arms can be compared at any time."""
    for seed in range(max(arm.seeds for arm in arms)):
        for arm in arms:
            if seed < arm.seeds:
                yield Piece(arm, seed)
