"""Joining an existing Ray cluster, and settings that differ in runs on several nodes."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigWarning
from verl_mas.run_folder.secrets import clean_command
from verl_mas.util import worker_folder
from verl_mas.util.text import is_loopback

RAY_INIT = "ray_kwargs.ray_init"
# The environment variable that passes the command line to the trainer's process.
COMMAND = "VERL_MAS_COMMAND"
COUNTS = ("num_cpus", "num_gpus")


def joined(config: DictConfig) -> bool:
    """Whether a Ray cluster is running already. Its resources cannot be counted on this machine."""
    import ray

    # Ask Ray first, because a worker finds the address neither in its environment nor in a file.
    return ray.is_initialized() or address(config) is not None


def address(config: DictConfig) -> str | None:
    """Address of the cluster, found as `ray.init` finds it; None if the run starts its own cluster."""
    from ray._private.utils import read_ray_address

    ray_init = OmegaConf.select(config, RAY_INIT)
    if not isinstance(ray_init, DictConfig):
        return None  # The checks refuse a `ray_init` that is not a mapping.
    given: str | None = ray_init.get("address")
    if given in (None, "auto"):
        given = os.environ.get("RAY_ADDRESS") or given
    if given in (None, "auto"):
        # `ray start` writes the address into a file.
        given = read_ray_address(ray_init.get("_temp_dir")) or given
    return None if given == "local" else given


def sends_folder(config: DictConfig) -> bool:
    """Whether Ray copies the folder of the command to each node, and starts the workers in the copy."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))  # set by `ray job submit`
    in_job = (job.get("runtime_env") or {}).get("working_dir")
    return bool(in_job or OmegaConf.select(config, f"{RAY_INIT}.runtime_env.working_dir"))


def adapt(config: DictConfig) -> None:
    """Change a composed configuration so that the run can join the Ray cluster, if a cluster is running already."""
    if address(config) is None:
        return
    ray_init = OmegaConf.select(config, RAY_INIT)
    with open_dict(ray_init):
        if config.trainer.device == "cpu":
            # `+platform=cpu` sets these counts for a cluster that the run starts. Ray refuses them for an existing
            # cluster.
            ray_init.update(dict.fromkeys(COUNTS))
        if not sends_folder(config):
            variable = f"runtime_env.env_vars.{worker_folder.VARIABLE}"
            OmegaConf.update(ray_init, variable, str(Path.cwd()), force_add=True)


def send_command(config: DictConfig) -> None:
    """Pass this process's command line, without secrets, to the trainer's process."""
    # Quote the command line, because a value of a configuration must not look like an interpolation.
    text = quote(shlex.join(clean_command(sys.orig_argv)))
    # A cluster that this process starts inherits its environment.
    os.environ[COMMAND] = text
    if address(config) is not None:
        ray_init = OmegaConf.select(config, RAY_INIT)
        with open_dict(ray_init):
            OmegaConf.update(ray_init, f"runtime_env.env_vars.{COMMAND}", text, force_add=True)


def sent_command() -> str | None:
    return unquote(os.environ.get(COMMAND, "")) or None


def loopback_servers(mas: MasConfig, settings: Mapping[str, object], nodes: int) -> Iterator[ConfigWarning]:
    """Find loopback addresses in settings. On each other node, such an address means that node and not the server's.
    `settings`: the arguments of the workflow."""
    urls = dict(pair for name, value in settings.items() for pair in _texts(f"mas.workflow.args.{name}", value))
    urls |= {f"mas.policies.{name}.remote.base_url": s.remote.base_url for name, s in mas.policies.items() if s.remote}
    for setting, url in urls.items():
        if _loopback(url):
            yield ConfigWarning(
                f"{setting}={url} in a run on {nodes} nodes",
                "sessions run on every node, and this address is the node itself",
                f"let the server listen on all addresses (verl-mas retriever serve --host 0.0.0.0), and set {setting} "
                "to an address that every node reaches; or start one on each node",
            )


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the strings in a setting and in its nested settings, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif is_dataclass(value):
        for item in fields(value):
            yield from _texts(f"{path}.{item.name}", getattr(value, item.name))


def _loopback(url: str) -> bool:
    try:
        return "://" in url and is_loopback(urlsplit(url).hostname)
    except ValueError:  # not a valid URL
        return False
