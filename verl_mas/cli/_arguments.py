"""What the commands that write boards and data sets read from their arguments, and how they refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from omegaconf import OmegaConf

from verl_mas.errors import ConfigError


def pairs(given: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """`size=4 walls=0.2` as a mapping of texts."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{text!r}", rule=f"the form is {form}", fix="write the name, '=' and the value")
        found[name] = value
    return found


def values(given: Sequence[str], form: str = "NAME=VALUE") -> dict[str, Any]:
    """`size=4 walls=0.2` as a mapping of numbers and texts, read as YAML."""
    return {name: _value(name, text) for name, text in pairs(given, form).items()}


def _value(name: str, text: str) -> Any:
    try:
        # As Hydra reads it: 1e-3 is a number, and not a text as in YAML 1.1.
        read: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
        return read["value"]
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}={text}", rule="a value is read as YAML", fix="a number or a word") from error


def check_noise(noise: float | None) -> None:
    if noise is not None and not 0 <= noise < 1:
        raise ConfigError(f"--noise {noise}", rule="it is a share, from 0 to less than 1", fix="0.25")


def check_count(option: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"{option} {count}", rule="a file has at least one row", fix="leave it out")
