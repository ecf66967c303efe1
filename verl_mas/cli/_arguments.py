"""Arguments of the commands that write boards and data sets, and their checks."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from omegaconf import OmegaConf

from verl_mas.errors import ConfigError
from verl_mas.planning.hardware import Hardware, parse_gpus


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


def check_share(option: str, share: float | None) -> None:
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"{option} {share}", rule="a share is 0 to 1", fix=f"use {option} 0.5")


def check_count(option: str, count: int | None) -> None:
    if count is not None and count < 1:
        raise ConfigError(f"{option} {count}", rule="a file has at least one row", fix="leave it out for the default")


def hardware_of(arguments: Sequence[str]) -> tuple[Hardware | None, list[str]]:
    """The machines of `--gpus` and `--host-gib`, and the other arguments; None without `--gpus`."""
    given, rest = _options(arguments, ("--gpus", "--host-gib"))
    if "--host-gib" in given and "--gpus" not in given:
        raise ConfigError(
            "--host-gib without --gpus", rule="it belongs to the machines of --gpus", fix="add --gpus 8x80"
        )
    return (parse_gpus(given["--gpus"], given.get("--host-gib")) if "--gpus" in given else None), rest


def _options(arguments: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`--name value` and `--name=value`, and what is left."""
    found: dict[str, str] = {}
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        name, equals, value = item.partition("=")
        if name in found:
            raise ConfigError(f"{name} twice", rule="a run is on one set of machines", fix="leave one of them out")
        if name in names:
            found[name] = value if equals else next(items, "")
        else:
            rest.append(item)
    return found, rest
