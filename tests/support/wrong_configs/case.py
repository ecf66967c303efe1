"""A wrong command line, and what `verl-mas check` makes of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType

from verl_mas.checks.report import Report
from verl_mas.checks.run import examine_command
from verl_mas.cli import check
from verl_mas.cli._arguments import hardware_of
from verl_mas.errors import ConfigError

# A sound command; the arguments of a case follow it. {task} is the folder of the tiny model and its data.
TEAM = (
    "+platform=cpu +mas=solver_verifier algorithm.adv_estimator=agent_grpo data.train_batch_size=8 "
    "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
    "reward.custom_reward_function.path=pkg://verl_mas.data.letters reward.custom_reward_function.name=score "
    "actor_rollout_ref.model.path={task}/model data.train_files={task}/train.parquet "
    "data.val_files={task}/test.parquet trainer.default_local_dir={folder}/checkpoints"
).split()
TIME_LIMIT = 90  # seconds; a user's `check()` may take 60


class Verdict(str, Enum):
    REFUSED = "refused, clear"
    WARNED = "warned"
    UNCLEAR = "refused, unclear"
    ACCEPTED = "ACCEPTED"
    TRACEBACK = "traceback"
    HANG = "hang or exit"


@dataclass(frozen=True)
class Case:
    """Arguments that are wrong, and words that the message must contain.

    `arguments` may name {folder}, a folder of the case's own that `prepare` fills, and {task}. A case that is legal
    but surely a mistake is `warned`. `alone`: the arguments are the whole command.
    """

    arguments: tuple[str, ...]
    says: str
    warned: bool = False
    prepare: Callable[[Path], object] | None = None
    alone: bool = False

    @property
    def name(self) -> str:
        return " ".join(self.arguments)

    def command(self, task: Path, folder: Path) -> list[str]:
        """The arguments of `verl-mas check`."""
        given = [*(() if self.alone else TEAM), *self.arguments]
        return [item.replace("{task}", str(task)).replace("{folder}", str(folder)) for item in given]


@dataclass(frozen=True)
class Seen:
    verdict: Verdict
    message: str


def wrong(arguments: str, says: str, **more: object) -> Case:
    """A case from a line of arguments, which are separated by spaces."""
    return Case(tuple(arguments.split(" ")), says, **more)  # type: ignore[arg-type]


def look(case: Case, task: Path, folder: Path) -> Seen:
    """What `verl-mas check` says of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    if case.prepare is not None:
        case.prepare(folder)
    try:
        with time_limit(TIME_LIMIT):
            options, arguments = check.parser().parse_known_args(case.command(task, folder))
            report = examine_command(arguments, hardware_of(options))
    except ConfigError as error:
        # Of --gpus, which is read before the configuration.
        report = Report(errors=[error])
    except (TimeoutError, SystemExit) as error:
        return Seen(Verdict.HANG, repr(error))
    except Exception as error:  # noqa: BLE001  # a traceback is what is counted here
        return Seen(Verdict.TRACEBACK, repr(error))
    message = "\n".join(map(str, report.errors or report.warnings))
    if "a check raised" in message or "Traceback" in message:
        return Seen(Verdict.TRACEBACK, message)
    if not message:
        return Seen(Verdict.ACCEPTED, "")
    if case.says not in message:
        return Seen(Verdict.UNCLEAR, message)
    return Seen(Verdict.REFUSED if report.errors else Verdict.WARNED, message)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def expired(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
