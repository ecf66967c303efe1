"""The configuration that verl's entry point would see."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from verl_mas.config import hydra_errors
from verl_mas.errors import ConfigError, raise_all

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
        raise hydra_errors.no_folder(options.config_dir)
    raise_all(hydra_errors.unknown_option(text, OPTIONS) for text in overrides if text.startswith("-"))
    raise_all(hydra_errors.no_key(text) for text in overrides if not hydra_errors.key_of(text))
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
                self.errors.append(hydra_errors.unreadable(error))
                remaining.remove(error.override)
            except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
                mistake = hydra_errors.override_of(error, remaining)
                if mistake is None:
                    raise_all([*self.errors, hydra_errors.explained(error)])
                    raise
                wrong.append((mistake, error))
                remaining.remove(mistake)
        raise_all([*self.errors, *(hydra_errors.misplaced(text, error, config) for text, error in wrong)])
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
