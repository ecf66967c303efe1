"""Wrong command lines, a YAML file per class beside this one, and what `verl-mas check` makes of them.

    cases:
      - trainer.n_gpus_per_node=4 ray_kwargs.ray_init.num_gpus=2: needs 4 GPUs, Ray has 2
      - data.train_batch_size=7: {warned: a whole number of optimiser steps}
      - trainer.default_local_dir={folder}/file: is a file
        files: {file: ""}
      - algorithm.adv_estimator=...:
        - gpro: did you mean 'agent_grpo'?
        - agent_grpo critic.enable=true: a critic would need

The first pair of a case: its arguments, and words that the message must contain; `warned` for what is legal but surely
a mistake. A list of cases in place of the words: their arguments are put for the `...`, or follow.

Its other keys prepare it, or every case of its list: `alone: true` if the arguments are the whole command and do not
follow the sound one, `environment`, `dead: true` where nothing accepts a connection (elsewhere everything does), and
the functions of `prepare.py`, which fill {folder}, a folder of the case's own.
{task} is that of a tiny model and its data. $NAME stands for a text of `words` in the file, or of WORDS. `parts` are
values that cases refer to by YAML's anchors.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import yaml
from data_rows import PUZZLES
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks import run
from verl_mas.checks.report import CheckReport
from verl_mas.cli import check
from verl_mas.cli._arguments import hardware_of
from verl_mas.config.compose import compose
from verl_mas.errors import ConfigError
from wrong_configs.prepare import PREPARE

HERE = Path(__file__).parent
CLASSES = tuple(sorted(file.stem for file in HERE.glob("*.yaml")))
# A sound command; the arguments of a case follow it.
TEAM = (
    "+platform=cpu +mas=solver_verifier algorithm.adv_estimator=agent_grpo data.train_batch_size=8 "
    "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
    "reward.custom_reward_function.path=pkg://verl_mas.testing.letters reward.custom_reward_function.name=score "
    "actor_rollout_ref.model.path={task}/model data.train_files={task}/train.parquet "
    "data.val_files={task}/test.parquet trainer.default_local_dir={folder}/checkpoints"
).split()
WORDS = {
    "ACTOR": "actor_rollout_ref.actor",
    "MODEL": "actor_rollout_ref.model",
    "ROLLOUT": "actor_rollout_ref.rollout",
    "CORRECTION": "algorithm.rollout_correction",
    "ESTIMATOR": "algorithm.adv_estimator",
    "ARGS": "++mas.workflow.args",
    "BARE": "mas.agents=null mas.workflow.args={}",
    "ROWS": "data.train_files={folder}/rows.parquet data.val_files={folder}/rows.parquet",
    "PUZZLES": " ".join(PUZZLES),
    "PYTHON": sys.executable,
    "SERVER": str(HERE.with_name("mcp_server.py")),
    "ON_GPUS": " ".join(word for word in TEAM if word != "+platform=cpu"),
    "NO_TEAM": " ".join(word for word in TEAM if "mas=" not in word and "adv_estimator" not in word),
    "CUT_VOCABULARY": '{"vocab": "' + "a" * (3 << 20),
    "HALF_PAIR": "\ud800",  # libyaml refuses it
}
# Arguments are separated by spaces outside of quotes and not after a comma or a colon.
ARGUMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|[,:][ ]|\S)+""")
TIME_LIMIT = 90  # seconds; a user's `check()` may take 60


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
    says: str
    warned: bool
    settings: Mapping[str, Any]  # its other keys

    @property
    def name(self) -> str:
        return " ".join(self.arguments)

    def command(self, task: Path, folder: Path) -> list[str]:
        """The arguments of `verl-mas check`."""
        given = [*([] if self.settings.get("alone") else TEAM), *self.arguments]
        return [item.replace("{task}", str(task)).replace("{folder}", str(folder)) for item in given]

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for key in self.settings.keys() - {"alone", "dead", "environment"}:
            PREPARE[key](folder, self.settings[key])


@dataclass(frozen=True)
class Seen:
    verdict: Verdict
    message: str
    messages: tuple[str, ...] = ()  # one by one

    def answers(self, case: Case) -> bool:
        return self.verdict is (Verdict.WARNED if case.warned else Verdict.REFUSED)


def cases(name: str) -> tuple[Case, ...]:
    """The cases of a class."""
    file = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    return tuple(_cases(file["cases"], "...", {}, WORDS | file.get("words", {})))


def _cases(
    entries: Sequence[Mapping[str, Any]], frame: str, around: Mapping[str, Any], words: Mapping[str, str]
) -> Iterator[Case]:
    for entry in entries:
        (given, says), *others = entry.items()
        given, settings = frame.replace("...", given), {**around, **dict(others)}
        if isinstance(says, list):
            yield from _cases(says, given if "..." in given else f"{given} ...", settings, words)
            continue
        warned = isinstance(says, dict)
        arguments = tuple(ARGUMENT.findall(_full(given, words)))
        yield Case(arguments, _full(says["warned"] if warned else says, words), warned, _full(settings, words))


def _full(value: Any, words: Mapping[str, str]) -> Any:
    """With what every $NAME in it stands for."""
    if isinstance(value, dict):
        return {_full(key, words): _full(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_full(item, words) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$([A-Z_]+)", lambda match: _full(words[match[1]], words), value)


def look(case: Case, task: Path, folder: Path) -> Seen:
    """What `verl-mas check` says of a case."""
    case.prepare(folder)
    try:
        with (
            time_limit(TIME_LIMIT),
            patch.object(run, "compose", composed),
            patch.dict(os.environ, case.settings.get("environment", {})),
            patch("socket.create_connection", refused if case.settings.get("dead") else MagicMock()),
        ):
            options, arguments = check.parser().parse_known_args(case.command(task, folder))
            report = run.examine_command(arguments, hardware_of(options))
    except ConfigError as error:
        # Of --gpus, which is read before the configuration.
        report = CheckReport(errors=[error])
    except (TimeoutError, SystemExit) as error:
        return Seen(Verdict.HANG, repr(error))
    except Exception as error:  # noqa: BLE001  # a traceback is what is counted here
        return Seen(Verdict.TRACEBACK, repr(error))
    messages = tuple(map(str, report.errors or report.warnings))
    message = "\n".join(messages)
    if "a check raised" in message or "Traceback" in message:
        return Seen(Verdict.TRACEBACK, message)
    if not message:
        return Seen(Verdict.ACCEPTED, "")
    if case.says not in message:
        return Seen(Verdict.UNCLEAR, message)
    return Seen(Verdict.REFUSED if report.errors else Verdict.WARNED, message, messages)


refused = Mock(side_effect=ConnectionRefusedError("Connection refused"))


def composed(arguments: Sequence[str]) -> DictConfig:
    """`compose`, with plain assignments after the sound command applied to what it and added groups compose to."""
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
