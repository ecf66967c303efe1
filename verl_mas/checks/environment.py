"""The environment variables of a run, as `environment.yaml` declares them, and what else is around its command."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import filter as matching
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.place import not_writable, target, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.cluster import RAY_INIT
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.util import read_yaml
from verl_mas.verl_.types import Fields

NUMBER = re.compile(r"-?\d+(\.\d*)?")
# In which Hydra makes the folder of a job.
OUTPUTS = Path("outputs")
# Kinds that are of this machine.
HERE = ("folder", "interface", "unset")


@cache
def declared() -> Mapping[str, Fields]:
    """By the names of variables, in which `*` may stand for any part: what is `about` them, and what a value `is`."""
    parts = read_yaml(Path(__file__).parents[1] / "environment.yaml").values()
    return {name: one for part in parts for name, one in part.items() if isinstance(one, dict)}


@contextmanager
def environment_of_workers(config: DictConfig) -> Iterator[None]:
    """All of a run but its driver is in workers of Ray, which get these variables, too."""
    before = dict(os.environ)
    os.environ.update(_of_workers(config))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _of_workers(config: DictConfig) -> dict[str, str]:
    given = OmegaConf.select(config, f"{RAY_INIT}.runtime_env.env_vars")
    named = given.items() if isinstance(given, DictConfig) else ()
    return {str(name): value for name, value in named if isinstance(value, str)}


def check_environment(config: DictConfig) -> Iterator[Problem]:
    from hydra.core.hydra_config import HydraConfig

    yield from _shadowing(Path.cwd())
    # Without the values, as one may be a key.
    for name in (name for name, value in _of_workers(config).items() if os.environ.get(name, value) != value):
        value, reason = f"{name} has another value in {RAY_INIT}.runtime_env.env_vars", "Ray's workers get that one"
        yield ConfigWarning(value, reason, "set both alike, or unset one")
    for pattern, own in declared().items():
        for name in matching(os.environ, pattern):
            given, kind = os.environ[name], own["is"]
            if given and not (kind in HERE and target()) and (why := _unlike(given, kind)):
                fix = f"{nearest(given, kind)}, or unset {name}" if isinstance(kind, list) else f"unset {name}"
                error = ConfigError(f"{name}={given}: {why}", rule=f"a run reads it: {own['about']}", fix=fix)
                yield unless_elsewhere(config, error) if kind in HERE else error
    # Where Hydra does not run, its default, which a file may be in the way of.
    folder = HydraConfig.get().run.dir if HydraConfig.initialized() else OUTPUTS if OUTPUTS.is_file() else None
    if folder and (why := not_writable(Path(folder))):
        yield ConfigError(f"hydra.run.dir={folder}: {why}", rule="Hydra makes this folder", fix="set another one")


def _unlike(given: str, kind: object) -> str:
    """Why a value is not of a kind; empty if it is."""
    if isinstance(kind, list):
        return "" if given in kind else f"it is none of {', '.join(kind)}"
    if kind in ("number", "share"):
        number = float(given) if NUMBER.fullmatch(given) else None
        return "it is no number" if number is None else "it is above 1" if kind == "share" and number > 1 else ""
    if kind == "lenient":
        return "verl and its packages warn, which then ends the run" if "error" in given else ""
    if kind == "modules":
        lacking = [one for one in given.split(",") if one and importlib.util.find_spec(one.partition(".")[0]) is None]
        return f"{lacking[0]} is not installed" if lacking else ""
    if kind == "interface":
        known = [name for _, name in socket.if_nameindex()]
        return "" if {*given.split(",")} <= {*known} else f"here are {', '.join(known)}"
    if kind == "unset":
        import torch

        return "" if torch.version.hip else "Ray sets another for each worker, and verl refuses both"
    return not_writable(Path(given).expanduser())


def _shadowing(folder: Path) -> Iterator[ConfigWarning]:
    """Files of the user that `python -m` and Ray's workers find before the package of that name."""
    others = [path for path in sys.path if Path(path or ".").resolve() != folder]
    for file in sorted(folder.glob("*.py")):
        if file.stem in sys.stdlib_module_names or PathFinder.find_spec(file.stem, others):
            reason = f"verl, or a package of its, that imports {file.stem} finds this file in its place"
            yield ConfigWarning(f"{file}", reason, "rename it, or start from another folder")
