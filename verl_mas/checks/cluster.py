"""Checks of a run that joins a running Ray cluster, or is on several nodes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from ray.runtime_env import RuntimeEnv

from verl_mas.checks.verl.place import FOLDERS, is_remote, missing, target
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.cluster import COUNTS, RAY_INIT, address, loopback_servers, sends_folder
from verl_mas.config.placement import pool_shape, used_pools
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import closest

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def check_cluster(config: DictConfig) -> Iterator[Problem]:
    given = [f"{RAY_INIT}.{key}" for key in COUNTS if OmegaConf.select(config, f"{RAY_INIT}.{key}") is not None]
    # A cluster that runs here is not on the machines of `--gpus`.
    cluster = OmegaConf.select(config, f"{RAY_INIT}.address") if target() else address(config)
    if given and cluster not in (None, "local"):
        yield ConfigError(
            f"{' and '.join(given)} with the running Ray cluster at {cluster}",
            rule="Ray takes these counts when a cluster starts, and none from a run that joins it",
            fix=f"set {' '.join(f'{key}=null' for key in given)}; ++{RAY_INIT}.address=local starts a cluster of the "
            "run's own",
        )
    yield from _runtime_env(config)
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


def _runtime_env(config: DictConfig) -> Iterator[Problem]:
    """What Ray would refuse when the run starts, or not read."""
    given = OmegaConf.select(config, f"{RAY_INIT}.runtime_env")
    if not isinstance(given, DictConfig):
        return
    known = [name for name in inspect.signature(RuntimeEnv).parameters if name not in ("kwargs", "_validate")]
    for name in map(str, given):
        if name not in known and (meant := closest(name.replace("_", ""), known, cutoff=0.7)):
            reason = "Ray knows no such field, and does not read it"
            yield ConfigWarning(f"{RAY_INIT}.runtime_env.{name}", reason=reason, fix=f"did you mean {meant}?")
    variables = given.get("env_vars")
    for name in map(str, variables) if isinstance(variables, DictConfig) else ():
        path, value = f"{RAY_INIT}.runtime_env.env_vars.{name}", variables[name]
        if not isinstance(value, str):
            yield ConfigError(
                f"{path}={value}", rule="an environment variable is a text", fix=f"""write '++{path}="{value}"'"""
            )
        elif name in ALLOCATOR and "expandable_segments:True" in value:
            yield ConfigWarning(
                f"{path}={value}", reason="an engine that frees its memory between steps ends with it", fix="remove it"
            )
    folder = given.get("working_dir")
    if isinstance(folder, str) and not is_remote(folder) and not Path(folder).expanduser().is_dir():
        yield missing(config, f"{RAY_INIT}.runtime_env.working_dir", folder, "a folder that Ray can send")


def check_addresses(run: Run, settings: Mapping[str, object]) -> Iterator[ConfigWarning]:
    """`settings` are the workflow's. A cluster that runs already may have more nodes, so the trainer looks again."""
    nodes = max((len(pool_shape(run, pool)) for pool in used_pools(run.mas)), default=1)
    if nodes > 1:
        yield from loopback_servers(run.mas, settings, nodes)
