"""Checks of single keys and values: what verl does not know, cannot read, or does not take."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.verl.refusals import Problem, unresolved
from verl_mas.checks.verl.served import engines_of_verl
from verl_mas.checks.verl.values import LINES, VALUES, takes
from verl_mas.config.hydra import packages
from verl_mas.config.merge import SECTION, leaves
from verl_mas.config.values import Hint, core_type, problems
from verl_mas.config.verl_settings import SettingDifference, SettingsSection, deleted, differences, settings_of
from verl_mas.engines.facts import ENGINES
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest

ENGINE_OPTIONS = f"{SECTION}.rollout.engine_kwargs"
OVERRIDES = re.compile(r"^mas\.policies\.[^.]+\.overrides\.")
REFERS = re.compile(r"\$\{\s*(?:oc\.select:\s*)?(\w+)")


def check_sections(config: DictConfig) -> Iterator[ConfigError]:
    """Sections of verl that were deleted. `config` is as Hydra composed it."""
    for path in deleted(config):
        yield ConfigError(
            f"{path} was deleted or is null", rule="verl reads this section", fix=f"remove ~{path} or {path}=null"
        )


def check_keys(config: DictConfig) -> Iterator[Problem]:
    """Keys that verl does not read. `config` is as Hydra composed it."""
    verl = settings_of(config)
    yield from check_engine_names(config)
    # Keys of the user at the top that an interpolation reads, `${my_rate}`.
    raw = OmegaConf.to_container(config, resolve=False)
    used = {name for _, value in leaves(raw) for name in REFERS.findall(str(value))}
    for difference in differences(config, verl):
        if difference.known or difference.path in used:
            continue
        error = unknown(difference, verl)
        if difference.verl_path.startswith("data.") and OmegaConf.select(config, "data.custom_cls.path"):
            yield ConfigWarning(error.value, f"{error.rule}; only your data.custom_cls can", error.fix)
        else:
            yield error


def unknown(difference: SettingDifference, verl: SettingsSection) -> ConfigError:
    """A key that verl does not read, with the settings that are meant: of this name elsewhere, or of a similar name."""
    assert difference.section is not None
    keys = list(dict.fromkeys([*difference.section.keys, *(() if difference.section.path else _groups())]))
    prefix = difference.path.removesuffix(difference.key)
    meant = [
        path for path in [".".join(path) for path, _ in leaves(verl.yaml)] if path.rpartition(".")[2] == difference.key
    ]
    meant = meant or [prefix + name for name in difflib.get_close_matches(difference.key, keys, n=3)]
    rule = f"verl reads no key {difference.key!r} in {difference.section.path or 'the configuration'}"
    fix = f"did you mean {', '.join(meant[:3])}?" if meant else f"known: {', '.join(keys)}"
    return ConfigError(f"{difference.path} is not a setting", rule=rule, fix=fix)


@cache
def _groups() -> list[str]:
    """The groups of our configuration: `+mas=`, `+platform=`."""
    folders = [entry for package in packages() for entry in files(package).iterdir()]
    return list(dict.fromkeys(folder.name for folder in folders if folder.is_dir() and "_" not in folder.name))


def check_values(config: DictConfig) -> Iterator[Problem]:
    """Values that verl does not take: type, range, choice, texts, interpolations."""
    verl = settings_of(config)
    for difference in differences(config, verl, single=VALUES):
        if difference.known:
            yield from check_value(difference)


def check_engine_names(config: DictConfig) -> Iterator[ConfigError]:
    """The keys of `engine_kwargs` are names of engines, which packages and plugins may add."""
    options = OmegaConf.select(config, ENGINE_OPTIONS)
    for name in map(str, options) if isinstance(options, DictConfig) else ():
        if name not in ENGINES and name not in engines_of_verl():
            value = f"{ENGINE_OPTIONS}.{name} is not a setting"
            rule = "its keys are the names of engines, each with the options of the engine"
            yield ConfigError(value, rule=rule, fix=nearest(name, engines_of_verl()))


def check_value(difference: SettingDifference) -> Iterator[Problem]:
    """Of a setting that verl knows."""
    try:
        value = difference.value()
    except OmegaConfBaseException as error:
        yield unresolved(error)
        return
    errors = list(_type_errors(difference, value))
    yield from errors
    if not errors:
        for path, leaf in leaves(value, (difference.path,)):
            yield from _leaf_errors(
                ".".join(path), leaf, lines=difference.section is None and not path[0].startswith("mas.")
            )


def _type_errors(difference: SettingDifference, value: object) -> Iterator[ConfigError]:
    if difference.section is None:
        # In a section that takes any key, some are known all the same.
        if inner := takes(OVERRIDES.sub(f"{SECTION}.", difference.path), value):
            yield from problems(inner, value, difference.path)
        return
    hint: Hint = takes(difference.verl_path, value) or difference.hint
    kind = core_type(hint)
    if difference.section.below(difference.key) is None and (get_origin(kind) or kind) is not dict:
        yield from problems(hint, value, difference.path)
    elif value is not None and not isinstance(value, Mapping):
        yield ConfigError(
            f"{difference.path}={value!r}", rule="this is a section, not a value", fix=f"set {difference.path}.<key>"
        )


def _leaf_errors(path: str, value: object, lines: bool) -> Iterator[ConfigError]:
    """What no setting takes: a number that is not finite, a text that is not a line."""
    if isinstance(value, float) and not math.isfinite(value):
        yield ConfigError(f"{path}={value}", rule="it is a finite number", fix=f"set {path} to a finite number")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and (fault := _fault(text, lines or any(name in path for name in LINES))):
            yield ConfigError(f"{path}={text!r}", rule=f"it has no {fault}", fix="write it without")


def _fault(text: str, lines: bool) -> str:
    if "\0" in text:
        return "null byte"
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        return "half of a surrogate pair: the text has no encoding"
    if not lines and any(not sign.isprintable() for sign in text):
        return "line break or other control character"
    return ""
