"""The parts that define a run of the evidence: a task, an arm of this task, and a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = 5


@dataclass(frozen=True)
class Start:
    """The command that creates the tasks and a warmed-up model, in the form in which the results record it."""

    name: str
    command: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of today's command: `verl-mas <arguments> --out FOLDER --seed SEED`. Old results record the
        former command `verl-mas puzzle`, so its name and its options are translated."""
        if self.command[0] != "puzzle":
            return self.command
        renamed = {"--train": "--train-rows", "--test": "--test-rows"}
        return ("data", *(renamed.get(word, word) for word in self.command))


@dataclass(frozen=True)
class Trial:
    """The settings and metrics that all arms of a task share."""

    name: str
    steps: int
    # The metric of success. The same validation also measures the metrics in `controls`.
    success: str
    settings: tuple[str, ...]
    controls: Mapping[str, str] = field(default_factory=dict)
    # The metric of this team's tokens per session, if several teams play in one run.
    tokens: str = ""
    # The name of the file of held-out tasks in the folder of the start.
    held_out: str = "test.parquet"
    # The overrides that assign a policy to each agent, for arms and evaluations with a policy per agent.
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
    # Whether the run saves its policies, so that evaluations can load them.
    keeps: bool = False
    # Whether the run needs a GPU. Otherwise it uses verl-mas's CPU platform.
    on_gpu: bool = False
    seeds: int = SEEDS
    # If several teams play in one run: the other arm whose run also measures this arm.
    within: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Played:
    """A trained policy that plays a role in an evaluation. `later`: take the policy from the run of the next seed."""

    arm: str
    policy: str
    later: bool = False


@dataclass(frozen=True)
class Evaluation:
    """A validation in which each role is played by a trained policy."""

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
        """Return the seed of the run that trained the policy of a role."""
        return (self.seed + played.later) % self.arm.seeds


def by_seeds(*arms: Arm) -> Iterator[Piece]:
    """Yield all arms with the first seed, then all arms with the next, so that arms can be compared early."""
    for seed in range(max(arm.seeds for arm in arms)):
        for arm in arms:
            if seed < arm.seeds:
                yield Piece(arm, seed)
