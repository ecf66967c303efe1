"""The configurations of recipes: each is composed once for all tests that read it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import cache

from omegaconf import DictConfig

from verl_mas.checks.run import validate
from verl_mas.config.compose import compose
from verl_mas.config.run import Run


def composed(arguments: str | Iterable[str]) -> DictConfig:
    """A new copy, of the arguments of a command or of a text of them."""
    arguments = tuple(arguments.split() if isinstance(arguments, str) else arguments)
    # It also sets a variable, whenever it is composed.
    if "+platform=cpu" in arguments:
        return compose(arguments)
    config = pickle.loads(_dump(arguments))
    assert isinstance(config, DictConfig)
    return config


def accepted(arguments: str | Iterable[str]) -> Run:
    """To be read alone; the checks of teams accept it."""
    return _accepted(tuple(arguments.split() if isinstance(arguments, str) else arguments))


@cache
def _accepted(arguments: tuple[str, ...]) -> Run:
    config = composed(arguments)
    return Run(config, validate(config))


@cache
def _dump(arguments: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(arguments))
