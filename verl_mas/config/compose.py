"""Composes a configuration as verl's entry point does. Errors of Hydra become ConfigErrors with a fix for the user."""

import argparse
import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.config.hydra import group_files
from verl_mas.config.merge import leaves
from verl_mas.config.registry import nearest
from verl_mas.config.schema import MasConfig
from verl_mas.config.verl_settings import folder_of, section_at, verl_settings
from verl_mas.errors import ConfigError, raise_all

RULE = "Hydra composes the overrides over verl's configuration"
ALL_KEYS = "`python -m verl.trainer.main_ppo --cfg job` prints every key"
# Matches the first line of Hydra's error for a wrong override of a key, but not the first line of an error for a group.
APPLIED = re.compile(r"Could not (override|append to config|delete from config)\b[^']*'([^']+)'( does not exist)?\.?$")
# Sections of `mas:` whose keys are names that the user chooses.
OPEN = [".".join(path) for path, value in leaves(asdict(MasConfig()), ("mas",)) if value == {}]
OPTIONS = ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp")


def compose(arguments: Iterable[str]) -> DictConfig:
    """Compose verl's configuration as `python -m verl.trainer.main_ppo` would with these arguments.

    Every mistake that Hydra finds in the arguments is raised as a ConfigError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--config-name", "-cn", default="ppo_trainer")
    parser.add_argument("--config-path", "-cp", type=Path, default=Path("config"))
    options, overrides = parser.parse_known_args(list(arguments))
    # Hydra takes the path relative to the file of verl's entry point. verl is located without importing it, because the
    # import takes seconds.
    main = folder_of("verl") / "trainer" / options.config_path
    where = {"--config-dir": options.config_dir and options.config_dir.absolute(), "--config-path": main}
    raise_all(_no_folder(option, path) for option, path in where.items() if path and not path.is_dir())
    rule = f"the arguments are overrides (key=value) and these options of verl's entry point: {', '.join(OPTIONS)}"
    raise_all(
        ConfigError(f"option {text}", rule=rule, fix=f"leave it out; {nearest(text, list(OPTIONS))}")
        for text in overrides
        if text.startswith("-")
    )
    rule = "an override is key=value, and this one has no key"
    raise_all(ConfigError(text, rule=rule, fix="write the key") for text in overrides if not _key_of(text))
    # OmegaConf derives its loader from `yaml.SafeLoader`. libyaml's loader reads verl's files in half the time.
    before, yaml.SafeLoader = yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _composed(overrides, main, options.config_dir, options.config_name)
    finally:
        yaml.SafeLoader = before


def _no_folder(option: str, path: Path) -> ConfigError:
    siblings = [each.name for each in path.parent.iterdir() if each.is_dir()] if path.parent.is_dir() else []
    start = "where the command is run" if option == "--config-dir" else "in the folder of verl's entry point"
    return ConfigError(
        f"{option} {path}",
        rule=f"it is a folder that exists; a relative path starts {start}",
        fix=f"give the path of a folder; in {path.parent}: {nearest(path.name, siblings)}",
    )


def _composed(overrides: list[str], main: Path, added: Path | None, name: str) -> DictConfig:
    """Compose the configuration, and collect all mistakes. Hydra stops at its first error, so remove each wrong
    override and run Hydra again."""
    remaining, wrong, errors = list(overrides), [], []
    while True:
        try:
            config = _hydra(remaining, str(main), added, name)
            break
        except OverrideParseException as error:
            rule = f"an override is key=value in Hydra's grammar ({error.message.splitlines()[0]})"
            fix = "write key=value, and quote a value with special characters: 'key=\"a, b\"'"
            errors.append(ConfigError(error.override, rule=rule, fix=fix))
            remaining.remove(error.override)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            found = APPLIED.match(str(error).partition("\n")[0])
            mistake = next((text for text in remaining if found and _key_of(text) == found[2]), None)
            if mistake is None:
                raise_all([*errors, _explained(error)])
                raise
            wrong.append(mistake)
            remaining.remove(mistake)
    raise_all([*errors, *(_misplaced(text, config) for text in wrong)])
    return config


def _hydra(overrides: list[str], main: str, added: Path | None, name: str) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(main, version_base=None):
        if added:
            # Add the folder as Hydra's own command line does; its compose API has no option for it.
            search_path = create_config_search_path(main)
            search_path.prepend("command-line", f"file://{added.resolve()}", SearchPathQuery(provider="schema"))
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2("app", search_path)
        return hydra_compose(name, overrides=overrides)


def _misplaced(override: str, config: DictConfig) -> ConfigError:
    """Describe an override of a missing key, or a `+` for an existing key. `config` is composed without the
    override."""
    key = _key_of(override)
    if override.startswith("+"):
        rule = f"+ adds a new key, and {key} exists already"
        return ConfigError(override, rule=rule, fix=f"write {override.lstrip('+')}")
    parent, _, name = key.rpartition(".")
    verls = section_at(parent, verl_settings())
    if verls is not None and verls.knows(name) and not override.startswith("~"):
        rule = f"verl reads {key}, but this configuration does not have it"
        return ConfigError(override, rule=rule, fix=f"++{override} adds it; if a ~ deletes its section, remove that")
    # Find the section, if there is one, that accepts keys which verl's YAML lacks: the user's names, or arguments that
    # verl passes on to a library.
    parents = [f"{'.'.join(key.split('.')[:depth])}." for depth in range(1, key.count(".") + 1)]
    passed_on = ("kwargs.", "override_config.")
    section = next((parent for parent in parents if parent[:-1] in OPEN or parent.endswith(passed_on)), "")
    paths = [path for path, _ in leaves(OmegaConf.to_container(config))]
    settings = dict.fromkeys(".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1))
    known = [setting for setting in settings if setting.startswith(section)]
    close = difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else ""
    if section and not override.startswith("~"):
        hint = f"{hint} ++{override} adds it".strip()
    return ConfigError(override, rule=f"{key} is not a setting of the configuration", fix=hint or ALL_KEYS)


def _explained(error: Exception) -> ConfigError:
    """Describe an error in the composition itself: a group, a file or a value."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if not group:
            rule, fix = "it names a configuration of verl", "use --config-name ppo_trainer"
            return ConfigError(f"--config-name {name}", rule=rule, fix=fix)
        first, _, rest = error.missing_cfg_file.partition("/")
        return ConfigError(
            str(error).splitlines()[0],
            rule=f"{group} is one of the files in a folder {group}/ on Hydra's search path",
            fix=nearest(rest, list(error.options or group_files(first)))
            + "; files of your own are found with --config-dir",
        )
    if isinstance(error, yaml.YAMLError):
        return ConfigError(" ".join(str(error).split()), rule="a configuration file is YAML", fix="correct that line")
    value, *hints = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ConfigError(value, rule=RULE, fix="; ".join(hints) or "see docs/train/configuration.md")


def _key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
