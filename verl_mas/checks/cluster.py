"""Checks of a run that joins a running Ray cluster, or is on several nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.folders import FOLDERS
from verl_mas.checks.place import is_remote
from verl_mas.checks.refusals import Problem
from verl_mas.config.cluster import COUNTS, RAY_INIT, address, loopback_servers, sends_folder
from verl_mas.config.placement import pool_shape, used_pools
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning


def check_cluster(config: DictConfig) -> Iterator[Problem]:
    yield from _counts(config)
    yield from _output(config)


def _counts(config: DictConfig) -> Iterator[ConfigError]:
    given = [f"{RAY_INIT}.{key}" for key in COUNTS if OmegaConf.select(config, f"{RAY_INIT}.{key}") is not None]
    if given and (cluster := address(config)):
        yield ConfigError(
            f"{' and '.join(given)} with the running Ray cluster at {cluster}",
            rule="Ray takes these counts when a cluster starts, and none from a run that joins it",
            fix=f"set {' '.join(f'{key}=null' for key in given)}; ++{RAY_INIT}.address=local starts a cluster of the "
            "run's own",
        )


def _output(config: DictConfig) -> Iterator[ConfigWarning]:
    if not sends_folder(config):
        return
    for setting in FOLDERS:
        folder = OmegaConf.select(config, setting)
        if isinstance(folder, str) and not os.path.isabs(folder) and not is_remote(folder):
            yield ConfigWarning(
                f"{setting}={folder} with a working_dir",
                "Ray runs the workers in a temporary copy of that folder, and what they write there is deleted with it",
                f"set {setting} to an absolute path",
            )


def check_addresses(config: DictConfig, mas: MasConfig, settings: Mapping[str, object]) -> Iterator[ConfigWarning]:
    """`settings` are the workflow's. A cluster that runs already may have more nodes, so the trainer looks again."""
    nodes = max((len(pool_shape(config, mas, pool)) for pool in used_pools(mas)), default=1)
    if nodes > 1:
        yield from loopback_servers(mas, settings, nodes)
