"""The configurations of recipes: each is composed once for all tests that read it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import cache

from omegaconf import DictConfig

from verl_mas.config.compose import compose


def composed(arguments: Iterable[str]) -> DictConfig:
    """A new copy. Not of `+platform=cpu`, which also sets a variable whenever it is composed."""
    config = pickle.loads(_dump(tuple(arguments)))
    assert isinstance(config, DictConfig)
    return config


@cache
def _dump(arguments: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(arguments))
