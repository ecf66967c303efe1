"""Errors of Hydra as ConfigErrors, with a fix for the user."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from verl_mas.config.hydra import group_files
from verl_mas.config.merge import leaves
from verl_mas.config.schema import MasConfig
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

RULE = "Hydra composes the overrides over verl's configuration"
ALL_KEYS = "`python -m verl.trainer.main_ppo --cfg job` prints every key"
# How Hydra's error for an override of a key starts. The line of one for a group has more text.
APPLIED = re.compile(r"Could not (override|append to config|delete from config)\b[^']*'([^']+)'( does not exist)?\.?$")
# Sections of `mas:` whose keys are names that the user chooses.
OPEN = [".".join(path) for path, value in leaves(asdict(MasConfig()), ("mas",)) if value == {}]


def no_folder(folder: Path) -> ConfigError:
    parent = folder.absolute().parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return ConfigError(
        f"--config-dir {folder}",
        rule="it is a folder that exists; a relative path starts where the command is run",
        fix=f"give the path of a folder; in {parent}: {nearest(folder.name, siblings)}",
    )


def unknown_option(text: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"option {text}",
        rule="the arguments are overrides (key=value) and these options of verl's entry point: "
        + ", ".join(option for option in known if option.startswith("--")),
        fix=f"leave it out; {nearest(text, list(known))}",
    )


def unreadable(error: OverrideParseException) -> ConfigError:
    return ConfigError(
        error.override,
        rule=f"an override is key=value in Hydra's grammar ({error.message.splitlines()[0]})",
        fix="write key=value, and quote a value with special characters: 'key=\"a, b\"'",
    )


def no_key(override: str) -> ConfigError:
    return ConfigError(override, rule="an override is key=value, and this one has no key", fix="write the key")


def override_of(error: Exception, overrides: Sequence[str]) -> str | None:
    """The override of a key that Hydra could not apply; None for any other error."""
    found = APPLIED.match(str(error).partition("\n")[0])
    return next((text for text in overrides if found and key_of(text) == found[2]), None)


def misplaced(override: str, error: Exception, config: DictConfig) -> ConfigError:
    """An override of a key that is missing, or a `+` for one that exists. `config` is composed without it."""
    key = key_of(override)
    if override.startswith("+"):
        return ConfigError(
            override, rule=f"+ adds a new key, and {key} exists already", fix=f"write {override.lstrip('+')}"
        )
    if _read_by_verl(key) and not override.startswith("~"):
        rule = f"verl reads {key}, but this configuration does not have it"
        return ConfigError(override, rule=rule, fix=f"++{override} adds it; if a ~ deletes its section, remove that")
    section = _open_section(key)
    known = [known for known in _keys(OmegaConf.to_container(config)) if known.startswith(section)]
    close = difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else ""
    if section and not override.startswith("~"):
        hint = f"{hint} ++{override} adds it".strip()
    return ConfigError(override, rule=f"{key} is not a setting of the configuration", fix=hint or ALL_KEYS)


def explained(error: Exception) -> ConfigError:
    """An error in the composition itself: a group, a file, a value."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(error, error.missing_cfg_file)
    if isinstance(error, yaml.YAMLError):
        return ConfigError(" ".join(str(error).split()), rule="a configuration file is YAML", fix="correct that line")
    value, *hints = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ConfigError(value, rule=RULE, fix="; ".join(hints) or "see docs/configuration.md")


def _missing(error: MissingConfigException, file: str) -> ConfigError:
    group, _, name = file.rpartition("/")
    if not group:
        return ConfigError(
            f"--config-name {name}", rule="it names a configuration of verl", fix="use --config-name ppo_trainer"
        )
    return ConfigError(
        str(error).splitlines()[0],
        rule=f"{group} is one of the files in a folder {group}/ on Hydra's search path",
        fix=nearest(file.partition("/")[2], list(error.options or group_files(file.partition("/")[0])))
        + "; files of your own are found with --config-dir",
    )


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _keys(tree: object, path: str = "") -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{path}{key}"
        yield from _keys(value, f"{path}{key}.")


def _read_by_verl(key: str) -> bool:
    parent, _, name = key.rpartition(".")
    section = section_at(parent, verl_settings())
    return section is not None and section.knows(name)


def _open_section(key: str) -> str:
    """The section of the key, if any, that takes keys beyond those of the YAML: names of the user or of a library."""
    parents = [f"{'.'.join(key.split('.')[:depth])}." for depth in range(1, key.count(".") + 1)]
    passed_on = ("kwargs.", "override_config.")
    return next((parent for parent in parents if parent[:-1] in OPEN or parent.endswith(passed_on)), "")
