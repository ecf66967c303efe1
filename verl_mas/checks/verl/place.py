"""Where a run reads its files: on this machine, or on another one that cannot be looked at from here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.verl.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.hardware import Hardware

# The machines of a run that is checked elsewhere: `--gpus` of `verl-mas check` and `verl-mas plan`.


_TARGET: ContextVar[Hardware | None] = ContextVar("target", default=None)


def target() -> Hardware | None:
    """None: the run is on this machine, or joins a cluster."""
    return _TARGET.get()


@contextmanager
def run_on(hardware: Hardware | None) -> Iterator[None]:
    token = _TARGET.set(hardware)
    try:
        yield
    finally:
        _TARGET.reset(token)


# The data and models of the shipped recipes, by folder, and the commands of the recipes' pages that create them.
MADE_BY = {
    "runs/first_run": "python -m verl_mas.testing.letters runs/first_run",
    "runs/math": "verl-mas data math --out runs/math",
    "runs/arithmetic": "verl-mas data arithmetic --out runs/arithmetic --noise 0.25",
    "runs/arithmetic_debate": "verl-mas data arithmetic --team debate --out runs/arithmetic_debate --noise 0.25",
    "runs/arithmetic_malt": "verl-mas data arithmetic --team generate_verify_refine --out runs/arithmetic_malt "
    "--noise 0.25",
    "runs/arithmetic_cory": "verl-mas data arithmetic --team cory --out runs/arithmetic_cory --noise 0.25",
    "runs/arithmetic_leader": "verl-mas data arithmetic --team leader_workers --terms 4 --out runs/arithmetic_leader "
    "--noise 0.25",
    "runs/tic_tac_toe": "verl-mas data self_play --game tic_tac_toe --out runs/tic_tac_toe --noise 0.3",
    "runs/tic_tac_toe_words": "verl-mas data self_play --game tic_tac_toe --out runs/tic_tac_toe_words",
    "runs/lookup": "verl-mas data lookup --out runs/lookup --noise 0.1 --worker-noise 0.15",
    "runs/split_clues": "verl-mas data split_clues --out runs/split_clues --noise 0.6",
    "runs/guide_driver": "verl-mas data guide_driver --out runs/guide_driver --noise 0.5",
    "runs/search": "verl-mas data search --out runs/search",
    "runs/invented": "verl-mas data invented --out runs/invented",
    "runs/invented_small": "verl-mas data invented --out runs/invented_small --entities 200 --hops 2 --train-rows 400 "
    "--test-rows 60 --noise 0.1",
    "runs/apps": "verl-mas data code --out runs/apps",
    "runs/code_contests": "verl-mas data code --train-set code_contests --out runs/code_contests",
    "runs/programs": "verl-mas data programs --out runs/programs --noise 0.55",
    "runs/tool_math": "verl-mas data tool_math --out runs/tool_math",
    "runs/plan_path": "verl-mas data puzzle plan_path --out runs/plan_path --size size=4 --practice min_distance=5 "
    "--test-rows 400 --first-test 10000 --noise 0.72 --args moves=1 --warm-up steps=9000 lessons=700000",
    "runs/slippery": "verl-mas data puzzle plan_path --out runs/slippery --size size=4 slip=0.2 --practice "
    "min_distance=3 --test-rows 200 --first-test 10000 --noise 0.72 --args moves=1 --warm-up steps=4000 lessons=300000",
    "runs/plan_path_10": "verl-mas data puzzle plan_path --out runs/plan_path_10 --size size=10 walls=0.22 "
    "--train-rows 20000",
    "runs/sudoku_4": "verl-mas data puzzle sudoku --out runs/sudoku_4 --size size=4 blanks=6 --first-test 10000 "
    "--noise 0.75 --args moves=1 --warm-up steps=6000 lessons=100000",
    "runs/sudoku": "verl-mas data puzzle sudoku --out runs/sudoku --size size=4 --train-rows 20000",
    "runs/sokoban_6": "verl-mas data puzzle sokoban --out runs/sokoban_6 --size size=6 --practice min_distance=5 "
    "--first-test 10000 --noise 0.6 --args moves=1 --warm-up steps=6000 lessons=200000",
    "runs/sokoban": "verl-mas data puzzle sokoban --out runs/sokoban --size size=6 boxes=1 --train-rows 20000",
}


def elsewhere(config: DictConfig) -> str:
    """Why the run is not on this machine; empty if it is."""
    if hardware := target():
        return f"the run is on {hardware}"
    ray_init = config.ray_kwargs.ray_init
    address = ray_init.get("address") or os.environ.get("RAY_ADDRESS")
    if address and address not in ("auto", "local"):
        return f"the run joins the Ray cluster at {address}"
    return ""


def unless_elsewhere(config: DictConfig, error: ConfigError) -> Problem:
    """What is missing on this machine is an error only if the run is on this machine."""
    if why := elsewhere(config):
        return ConfigWarning(error.value, reason=f"not checked: {why}", fix="run the check on a machine of the run")
    return error


def missing(config: DictConfig, setting: str, path: str, noun: str) -> Problem:
    """A file or folder that is not there."""
    command = MADE_BY.get(str(Path(path).parent))
    return unless_elsewhere(
        config,
        ConfigError(
            f"{setting}={path}" + (" has a null byte" if "\0" in path else " does not exist").replace("\0", "\\0"),
            rule=f"it is {noun}",
            fix=f"create it with: {command}" if command else f"set {setting} to an existing one",
        ),
    )


def is_remote(path: str) -> bool:
    """hdfs://, s3:// and others, which are read when the run starts."""
    return "://" in path


def not_writable(folder: Path) -> str:
    """Why a run cannot write a folder that may not exist yet; empty if it can."""
    if "\0" in str(folder):
        return "it has a null byte"
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        return f"{parent} is a file"
    try:
        # Permissions alone do not tell: root has them in /proc and on a read-only disk.
        with tempfile.TemporaryFile(dir=parent):
            return ""
    except OSError as error:
        return f"{parent}: {error.strerror or error}"
