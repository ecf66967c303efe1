"""The configuration that verl's entry point would see."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig


def compose(arguments: Iterable[str]) -> DictConfig:
    """verl's own config as `python -m verl.trainer.main_ppo` would see it with these arguments."""
    import verl.trainer
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import SearchPathException

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("--config-name", "-cn", default="ppo_trainer")
    options, overrides = parser.parse_known_args(list(arguments))
    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(folder, version_base=None):
        if options.config_dir:
            # As Hydra does it; what it offers to a program that composes has no such option.
            if not options.config_dir.is_dir():
                raise SearchPathException(f"Additional config directory '{options.config_dir}' not found")
            search_path = create_config_search_path(folder)
            added = f"file://{options.config_dir.resolve()}"
            search_path.prepend("command-line", added, SearchPathQuery(provider="schema"))
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2("app", search_path)
        return hydra_compose(options.config_name, overrides=overrides)
