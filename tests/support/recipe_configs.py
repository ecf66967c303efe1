"""The configurations of recipes: each is composed once for all tests that read it."""

import pickle
from collections.abc import Iterable
from functools import cache

from omegaconf import DictConfig

from verl_mas.checks.run import validate
from verl_mas.config.compose import compose
from verl_mas.config.run import Run


def composed(arguments: str | Iterable[str]) -> DictConfig:
    """Return a copy of the configuration that these arguments of a command compose to."""
    arguments = tuple(arguments.split() if isinstance(arguments, str) else arguments)
    # This platform sets an environment variable in each composition.
    if "+platform=cpu" in arguments:
        return compose(arguments)
    config = pickle.loads(_dump(arguments))
    assert isinstance(config, DictConfig)
    return config


def accepted(arguments: str | Iterable[str]) -> Run:
    """Return a run that the checks of teams accept. It is shared, so tests must not change it."""
    return _accepted(tuple(arguments.split() if isinstance(arguments, str) else arguments))


@cache
def _accepted(arguments: tuple[str, ...]) -> Run:
    config = composed(arguments)
    return Run(config, validate(config))


@cache
def _dump(arguments: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(arguments))
