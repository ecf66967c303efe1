"""Arguments of the commands that write boards and data sets, and their checks."""

from __future__ import annotations

from collections.abc import Sequence

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


def values(given: Sequence[str], form: str = "NAME=VALUE") -> dict[str, object]:
    """`size=4 walls=0.2` as a mapping of numbers and texts, read as YAML."""
    return {name: _value(name, text) for name, text in pairs(given, form).items()}


def _value(name: str, text: str) -> object:
    try:
        # Read as Hydra does: 1e-3 is a number, and not a text as in YAML 1.1.
        read = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
        assert isinstance(read, dict)
        return read["value"]
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}={text}", rule="a value is read as YAML", fix="give a number or a word") from error


def check_noise(noise: float | None) -> None:
    if noise is not None and not 0 <= noise < 1:
        raise ConfigError(f"--noise {noise}", rule="it is at least 0 and less than 1", fix="use --noise 0.25")


def check_count(option: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"{option} {count}", rule="a file has at least one row", fix="leave it out for the default")
