"""The configuration that verl's entry point would see, and errors of Hydra as ConfigErrors, with a fix for the user."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.config.hydra import group_files
from verl_mas.config.merge import leaves
from verl_mas.config.schema import MasConfig
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.errors import ConfigError, raise_all
from verl_mas.registry import nearest

RULE = "Hydra composes the overrides over verl's configuration"
ALL_KEYS = "`python -m verl.trainer.main_ppo --cfg job` prints every key"
# How Hydra's error for an override of a key starts. The line of one for a group has more text.
APPLIED = re.compile(r"Could not (override|append to config|delete from config)\b[^']*'([^']+)'( does not exist)?\.?$")
# Sections of `mas:` whose keys are names that the user chooses.
OPEN = [".".join(path) for path, value in leaves(asdict(MasConfig()), ("mas",)) if value == {}]
OPTIONS = ("--config-dir", "-cd", "--config-name", "-cn")


def compose(arguments: Iterable[str]) -> DictConfig:
    """verl's own config as `python -m verl.trainer.main_ppo` would see it with these arguments.

    Every mistake that Hydra finds in them is raised as ConfigError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--config-name", "-cn", default="ppo_trainer")
    options, overrides = parser.parse_known_args(list(arguments))
    if options.config_dir and not options.config_dir.is_dir():
        raise _no_folder(options.config_dir)
    raise_all(_unknown_option(text, OPTIONS) for text in overrides if text.startswith("-"))
    rule = "an override is key=value, and this one has no key"
    raise_all(ConfigError(text, rule=rule, fix="write the key") for text in overrides if not _key_of(text))
    with _libyaml():
        return Composer(_verls_folder(), options.config_dir, options.config_name).compose(overrides)


def _verls_folder() -> Path:
    """verl is found and not imported, which takes seconds."""
    verl = importlib.util.find_spec("verl")
    assert verl is not None and verl.origin is not None
    return Path(verl.origin).parent / "trainer/config"


@contextmanager
def _libyaml() -> Iterator[None]:
    """OmegaConf derives its loader from `yaml.SafeLoader`; the one of libyaml reads verl's files in half the time."""
    before, yaml.SafeLoader = yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield
    finally:
        yaml.SafeLoader = before


@dataclass
class Composer:
    """Hydra stops at its first error, so a wrong override is removed and Hydra runs again: all mistakes are found."""

    main: Path
    added: Path | None
    name: str
    errors: list[ConfigError] = field(default_factory=list)

    def compose(self, overrides: list[str]) -> DictConfig:
        remaining, wrong = list(overrides), []
        while True:
            try:
                config = self._hydra(remaining)
                break
            except OverrideParseException as error:
                self.errors.append(_unreadable(error))
                remaining.remove(error.override)
            except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
                mistake = _override_of(error, remaining)
                if mistake is None:
                    raise_all([*self.errors, _explained(error)])
                    raise
                wrong.append((mistake, error))
                remaining.remove(mistake)
        raise_all([*self.errors, *(_misplaced(text, error, config) for text, error in wrong)])
        return config

    def _hydra(self, overrides: list[str]) -> DictConfig:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra._internal.hydra import Hydra
        from hydra._internal.utils import create_config_search_path
        from hydra.core.config_search_path import SearchPathQuery
        from hydra.core.global_hydra import GlobalHydra

        with initialize_config_dir(str(self.main), version_base=None):
            if self.added:
                # As Hydra's own command line does; its compose API has no option for it.
                search_path = create_config_search_path(str(self.main))
                search_path.prepend(
                    "command-line", f"file://{self.added.resolve()}", SearchPathQuery(provider="schema")
                )
                GlobalHydra.instance().clear()
                Hydra.create_main_hydra2("app", search_path)
            return hydra_compose(self.name, overrides=overrides)


def _no_folder(folder: Path) -> ConfigError:
    parent = folder.absolute().parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return ConfigError(
        f"--config-dir {folder}",
        rule="it is a folder that exists; a relative path starts where the command is run",
        fix=f"give the path of a folder; in {parent}: {nearest(folder.name, siblings)}",
    )


def _unknown_option(text: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"option {text}",
        rule="the arguments are overrides (key=value) and these options of verl's entry point: "
        + ", ".join(option for option in known if option.startswith("--")),
        fix=f"leave it out; {nearest(text, list(known))}",
    )


def _unreadable(error: OverrideParseException) -> ConfigError:
    return ConfigError(
        error.override,
        rule=f"an override is key=value in Hydra's grammar ({error.message.splitlines()[0]})",
        fix="write key=value, and quote a value with special characters: 'key=\"a, b\"'",
    )


def _override_of(error: Exception, overrides: Sequence[str]) -> str | None:
    """The override of a key that Hydra could not apply; None for any other error."""
    found = APPLIED.match(str(error).partition("\n")[0])
    return next((text for text in overrides if found and _key_of(text) == found[2]), None)


def _misplaced(override: str, error: Exception, config: DictConfig) -> ConfigError:
    """An override of a key that is missing, or a `+` for one that exists. `config` is composed without it."""
    key = _key_of(override)
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


def _explained(error: Exception) -> ConfigError:
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


def _key_of(override: str) -> str:
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
