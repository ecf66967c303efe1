"""Run `verl-mas check` on a sound command line that is followed by the arguments of a case.

This file also lists every setting of verl and of a team, with values that the setting refuses and values that it takes.
"""

import functools
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin, is_typeddict
from unittest.mock import MagicMock, patch

from broken import time_limit
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks import run
from verl_mas.checks.report import CheckReport
from verl_mas.checks.settings import takes
from verl_mas.cli import check
from verl_mas.config.compose import compose
from verl_mas.config.schema import MasConfig
from verl_mas.config.values import Hint, core_type, problems, settable
from verl_mas.config.verl_settings import SettingsSection, verl_settings
from verl_mas.errors import ConfigError
from verl_mas.planning.hardware import parse_gpus

# A sound command; the arguments of a case follow it.
TEAM = (
    "+platform=cpu +mas=solver_verifier algorithm.adv_estimator=agent_grpo data.train_batch_size=8 "
    "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.save_freq=20 "
    "reward.custom_reward_function.path=pkg://verl_mas.testing.letters reward.custom_reward_function.name=score "
    "actor_rollout_ref.model.path={task}/model data.train_files={task}/train.parquet "
    "data.val_files={task}/test.parquet trainer.default_local_dir={folder}/checkpoints"
).split()
SERVER = str(Path(__file__).with_name("mcp_server.py"))
TIME_LIMIT = 90  # seconds; a user's `check()` may take 60

MESSAGES = [{"role": "user", "content": "Repeat a."}]
ROW = {"data_source": "letters", "prompt": MESSAGES, "reward_model": {"ground_truth": "a"}}


def files(folder: Path, contents: Mapping[str, str]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


class Verdict(str, Enum):
    REFUSED = "refused, clear"
    WARNED = "warned"
    UNCLEAR = "refused, unclear"
    ACCEPTED = "ACCEPTED"
    TRACEBACK = "traceback"
    HANG = "hang or exit"


@dataclass(frozen=True, eq=False)
class Case:
    arguments: tuple[str, ...]
    says: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, task: Path, folder: Path) -> list[str]:
        """The arguments of `verl-mas check`."""
        return [item.replace("{task}", str(task)).replace("{folder}", str(folder)) for item in (*TEAM, *self.arguments)]


@dataclass(frozen=True)
class Seen:
    verdict: Verdict
    message: str


def look(case: Case, task: Path, folder: Path) -> Seen:
    """Run `verl-mas check` on a case."""
    try:
        with (
            time_limit(TIME_LIMIT),
            patch.object(run, "compose", composed),
            patch.dict(os.environ, case.environment),
            patch("socket.create_connection", MagicMock()),
        ):
            options, arguments = check.parser().parse_known_args(case.command(task, folder))
            report = run.examine_command(arguments, parse_gpus(options.gpus) if options.gpus else None)
    except ConfigError as error:
        # An error of --gpus, which is read before the configuration.
        report = CheckReport(errors=[error])
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


def composed(arguments: Sequence[str]) -> DictConfig:
    """Compose the sound command with its added groups once, and apply the plain assignments that follow to a copy."""
    # The last argument of the sound command has the folder of the case.
    sound, further = tuple(arguments[: len(TEAM) - 1]), list(arguments[len(TEAM) - 1 :])
    if [text.partition("=")[0] for text in sound] == [text.partition("=")[0] for text in TEAM[:-1]]:
        try:
            return assigned(sound, OverridesParser.create().parse_overrides(further))
        except (HydraException, OmegaConfBaseException, NotImplementedError):
            pass  # Hydra itself reports what is wrong with them.
    return compose(arguments)


def assigned(sound: tuple[str, ...], overrides: list[Override]) -> DictConfig:
    groups = [override for override in overrides if override.is_add() and "/" in override.key_or_group]
    config: DictConfig = pickle.loads(dumped((*sound, *(str(group.input_line) for group in groups))))
    for override in (override for override in overrides if override not in groups):
        key, force_add = override.key_or_group, override.is_force_add()
        if override.is_sweep_override() or override.package or "." not in key or "/" in key:
            raise NotImplementedError("may be a group")
        if override.is_add() or override.is_delete():
            raise NotImplementedError("depends on what is there")
        OmegaConf.update(config, key, override.value(), force_add=force_add)
    return config


@functools.cache
def dumped(sound: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(sound))


# Every setting with a type refuses some of these values.
WRONG = ["no such value", 5, -1, 1.5, -(10**9), 10**9, True, [[]], math.nan, ""]
# Most settings take one of these values.
USUAL: list[object] = [None, False, True, 0, 1, 2, 64, 100_000, 0.0, 0.1, 0.5, 1.0, 2.5, "", "auto", "a", [], ["a"], {}]


def verls() -> Iterator[tuple[str, Hint]]:
    """Every setting of verl with a type, outside of the sections that are passed on to others."""

    def below(section: SettingsSection) -> Iterator[tuple[str, Hint]]:
        for key in section.keys:
            path = f"{section.path}.{key}".lstrip(".")
            inner = section.below(key)
            if inner:
                yield from below(inner)
            elif key != "_target_":
                yield path, takes(path) or section.hint(key)

    return below(verl_settings())


def ours(kind: Hint = MasConfig, path: str = "mas") -> Iterator[tuple[str, Hint]]:
    """Every setting of the team; `x` stands for the names of agents, policies, pools and servers."""
    for name, hint in settable(kind).items():
        inner, here = core_type(hint), f"{path}.{name}"
        yield here, hint
        if get_origin(inner) is dict:
            inner, here = get_args(inner)[1], f"{here}.x"
        if is_dataclass(inner) or is_typeddict(inner):
            yield from ours(inner, here)


def refused_by(hint: Hint) -> list[object]:
    return [value for value in WRONG if problems(hint, value, "it")]


def taken_by(hint: Hint) -> list[object]:
    """Some values that a setting takes, and every choice."""
    parts = [hint, *get_args(hint), *(choice for part in get_args(hint) for choice in get_args(part))]
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    return [value for value in [*USUAL, *choices] if not problems(hint, value, "it")]
