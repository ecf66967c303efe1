"""Whether this installation, this machine and its cluster can run it: plugin, versions, platform, Ray."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import requires, version
from pathlib import Path
from typing import cast

import psutil
from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.place import (
    FOLDERS,
    elsewhere,
    is_remote,
    missing,
    no_connection,
    not_writable,
    target,
    unless_elsewhere,
)
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.cluster import RAY_INIT, address, joined, loopback_servers, sends_folder
from verl_mas.config.placement import CPUS_PER_GPU, Resources, cpus_needed, gpus_needed, pool_shape, require, used_pools
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.platform import DEVICE, selected
from verl_mas.registry import closest, nearest
from verl_mas.verl_.types import Fields

PLUGIN = "verl_mas.plugin"
# Bytes of the path of a socket, and of what Ray adds for one: ray/session_2026-01-31_.../sockets/plasma_store.
SOCKET, OF_RAY = 107, 68
TMPDIRS = ("RAY_TMPDIR", "TMPDIR")
# A name in one of these settings -> the package that verl imports for it, where that has another name.
PACKAGES = {
    "trainer.logger": {"vemlp_wandb": "volcengine_ml_platform"},
    "actor_rollout_ref.rollout.trace.backend": {},
    # module.Class
    "trainer.checkpoint_callback_class": {},
}
NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
KEY = 40  # Characters of a key of wandb, at least
WITHOUT_PACKAGE = "console", "file", None, ""
# Of a Ray cluster.
ADDRESS = re.compile(r"(\w+://)?[^/\s]+:\d+(/\S*)?")


def check_plugin() -> Iterator[ConfigError]:
    """verl ignores a plugin that it cannot import, and logs that only at level DEBUG."""
    plugin = sys.modules.get(PLUGIN)
    if "verl" in sys.modules and not (plugin and plugin.active()):
        why = import_error()
        value = "verl has not loaded the verl-mas plugin" + (f": {why}" if why else "")
        fix = "correct this error" if why else "unset VERL_USE_EXTERNAL_PLUGINS; `verl-mas doctor` shows more"
        yield ConfigError(value, rule="the plugin registers with verl what this run uses", fix=fix)


def import_error() -> str:
    """The error of importing the plugin, which verl hides; empty if there is none."""
    try:
        importlib.import_module(PLUGIN)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is shown
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    return ""


def check_packages(config: DictConfig) -> Iterator[Problem]:
    """What verl imports by name when a run starts, after its models are loaded."""
    for setting, renamed in PACKAGES.items():
        names = OmegaConf.select(config, setting)
        for name in [names] if isinstance(names, str | None) else names:
            package = renamed.get(str(name), str(name).rpartition(".")[0] or str(name))
            if name not in WITHOUT_PACKAGE and not _is_installed(package):
                rule = f"verl imports {package} for it, and it is not installed"
                error = ConfigError(f"{setting}={name}", rule=rule, fix=f"install {package}, or remove {name}")
                yield unless_elsewhere(config, error)
            elif name == "wandb" and (wrong := _of_wandb(config)):
                rule = "wandb starts with these settings"
                yield ConfigError(f"{setting}=wandb: {wrong}", rule=rule, fix="correct them")
            elif name == "wandb" and not _wandb_key():
                reason = f"no key of {KEY} characters is here, and a run has no terminal that could ask for one"
                fix = "run wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline"
                yield ConfigWarning(f"{setting}={name}", reason, fix)
    for unread in ("WANDB_PROJECT", "WANDB_NAME"):
        if unread in os.environ and "wandb" in str(config.trainer.logger):
            reason = "verl gives wandb trainer.project_name and trainer.experiment_name"
            yield ConfigWarning(f"{unread}={os.environ[unread]}", reason, "set these")
    loops = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
    if (path := OmegaConf.select(config, loops)) and not is_remote(path) and not Path(path).expanduser().is_file():
        yield missing(config, loops, path, "a file of verl's own agent loops")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # A package above it
        return False


def _of_wandb(config: DictConfig) -> str:
    """What wandb refuses of the name of the project and of its variables, which it reads when all models are loaded."""
    import wandb

    try:
        wandb.Settings(project=str(config.trainer.project_name)).update_from_env_vars(dict(os.environ))
    except Exception as error:  # noqa: BLE001  of several kinds
        return ", ".join(str(error).splitlines()[1:3]) or str(error)
    return ""


def _wandb_key() -> bool:
    """Where wandb looks for it; offline it needs none."""
    if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return True
    if (key := os.environ.get("WANDB_API_KEY")) is not None:
        return len(key) >= KEY
    return Path(os.environ.get("NETRC") or "~/.netrc").expanduser().is_file()


def check_versions() -> Iterator[ConfigError]:
    """Whether verl is one that the other checks can import and read."""
    for requirement in requirements("verl-mas"):
        if requirement.name == "verl" and not requirement.specifier.contains(version("verl"), prereleases=True):
            rule = f"verl-mas {version('verl-mas')} needs verl {requirement.specifier}"
            yield ConfigError(f"verl {version('verl')} is installed", rule=rule, fix=f"pip install '{requirement}'")
    if os.environ.get("VERL_USE_MODELSCOPE", "").lower() == "true" and importlib.util.find_spec("modelscope") is None:
        rule = "verl then imports modelscope, which is not installed, and cannot be imported itself"
        yield ConfigError("VERL_USE_MODELSCOPE=true", rule=rule, fix="pip install modelscope, or unset it")


def requirements(package: str) -> list[Requirement]:
    """The requirements of a package without its extras."""
    return [Requirement(line) for line in requires(package) or [] if "extra ==" not in line]


def check_platform(device: str | None = None) -> Iterator[ConfigError]:
    """`device` is verl's trainer.device."""
    name = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if name == DEVICE and device not in (None, DEVICE):
        value = f"trainer.device={device} on the platform {DEVICE}"
        rule = "+platform=cpu sets the device of the run"
        yield ConfigError(value, rule=rule, fix="remove trainer.device or +platform=cpu")
    if name in ("", DEVICE):
        return  # Importing verl takes seconds.
    from verl.plugin.platform.platform_manager import PlatformRegistry

    known = list(PlatformRegistry.registered_names())
    if name not in known:
        yield ConfigError(
            f"VERL_PLATFORM={name}", rule="it names a platform that is registered with verl", fix=nearest(name, known)
        )


def check_device(config: DictConfig) -> Iterator[ConfigError]:
    if target() and config.trainer.device == DEVICE:
        value = f"--gpus with trainer.device={config.trainer.device}"
        rule = "a plan is one of GPUs; a run on the CPU (+platform=cpu) takes main memory only"
        yield ConfigError(value, rule=rule, fix="remove +platform=cpu or trainer.device, or --gpus")


def available(config: DictConfig) -> Resources | None:
    """What Ray will have; None, unknown, if it joins a running cluster."""
    if not target() and joined(config):
        return None
    from ray._private.utils import get_num_cpus

    ray_init = config.ray_kwargs.ray_init
    gpus, cpus = ray_init.get("num_gpus"), ray_init.get("num_cpus")
    if target():
        # Of the machines of `--gpus` only what the command says is known here; the plan compares the rest.
        return Resources(*(sys.maxsize if count is None else count for count in (gpus, cpus)))
    return Resources(
        gpus=devices_here() if gpus is None else gpus,
        # Ray respects the limit of a container.
        cpus=get_num_cpus(override_docker_cpu_warning=True) if cpus is None else cpus,
    )


def devices_here() -> int:
    """The GPUs or NPUs that Ray will find."""
    import torch

    if selected() or importlib.util.find_spec("torch_npu") is None:
        return torch.cuda.device_count()
    from verl.plugin.platform import get_platform  # Importing verl takes seconds.

    return get_platform().device_count()


def check_resources(run: Run) -> Iterator[Problem]:
    config, have = run.config, available(run.config)
    if problem := _step_without_gpus(config, have is None):
        yield problem
        return
    if have is None:
        return
    visible, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), config.ray_kwargs.ray_init.get("num_gpus") or 0
    if visible is not None and not target() and gpus > (visible_gpus := len(list(filter(None, visible.split(","))))):
        value = f"CUDA_VISIBLE_DEVICES={visible} with {RAY_INIT}.num_gpus={gpus}"
        rule = f"Ray starts with at most the {visible_gpus} GPUs that are visible"
        yield ConfigError(value, rule=rule, fix="unset CUDA_VISIBLE_DEVICES, as +platform=cpu counts no real GPUs")
    nodes = max((len(pool_shape(run, pool)) for pool in used_pools(run.mas)), default=1)
    if nodes > 1 and not target():
        reason = "no Ray cluster runs here, and one that the run starts has this machine only"
        yield ConfigWarning(f"a pool of {nodes} nodes", reason=reason, fix="start the cluster with `ray start`")
    if run.mode:
        yield from _gpus_from_the_first(run)
        yield from require(Resources(gpus_needed(run), cpus_needed(run)), have, "the team")
        return
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    # Beside the pool: the controller and the storage units of TransferQueue, and one CPU to place the rest.
    yield from require(Resources(gpus=gpus, cpus=CPUS_PER_GPU * gpus + units + 2), have, "verl")


def _step_without_gpus(config: DictConfig, joins: bool) -> Problem | None:
    """Only a warning for a run that joins a cluster, whose other nodes may have GPUs."""
    if "SLURM_STEP_ID" not in os.environ or target() or config.trainer.device != "cuda" or devices_here():
        return None
    value, why = "this Slurm step has no GPU", "a step has GPUs that are asked for by number, not those of --exclusive"
    gpus = f"--gpus-per-node={config.trainer.n_gpus_per_node}"
    fix = f"srun {gpus} --cpus-per-task=$SLURM_CPUS_ON_NODE --cpu-bind=none, as in docs/clusters.md"
    return ConfigWarning(value, why, fix) if joins else ConfigError(value, rule=why, fix=fix)


def _gpus_from_the_first(run: Run) -> Iterator[ConfigError]:
    """Where Ray hides no GPUs from processes, verl numbers those of SGLang's engines from the first of a node on."""
    policies = [name for name, spec in run.mas.policies.items() if spec.remote is None and spec.adapter_of is None]
    if not os.environ.get(NOSET) or len(used_pools(run.mas)) == 1 or gpus_needed(run) > devices_here():
        return
    if any(run.view(name).value("rollout.name") == "sglang" for name in policies):
        rule = "the engines of every pool would start on the first GPUs of the node"
        yield ConfigError(f"{NOSET}={os.environ[NOSET]} with SGLang on several pools", rule=rule, fix=f"unset {NOSET}")


# A run that joins a running Ray cluster, or is on several nodes.


def check_cluster(config: DictConfig) -> Iterator[Problem]:
    # A cluster that runs here is not on the machines of `--gpus`.
    cluster = OmegaConf.select(config, f"{RAY_INIT}.address") if target() else address(config)
    if not target() and (why := _absent(config, cluster)):
        rule = "a run joins the Ray cluster that it names, and Ray waits minutes for one that is not there"
        fix = f"start it with `ray start --head`; or set ++{RAY_INIT}.address=local, which starts one of the run's own"
        yield ConfigError(f"the Ray cluster at {cluster}: {why}", rule=rule, fix=fix)
    memory = None if elsewhere(config) else psutil.virtual_memory().total
    yield from combinations("cluster", config, cluster=cluster, memory=memory)
    yield from _folders_of_ray(config)
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


def _folders_of_ray(config: DictConfig) -> Iterator[Problem]:
    """Ray's session goes below one of them, and its timeline into a folder that is there."""
    setting = f"{RAY_INIT}._temp_dir"
    given = {setting: OmegaConf.select(config, setting), **{name: os.environ.get(name) for name in TMPDIRS}}
    for name, folder in given.items():
        why = not_writable(Path(folder)) if folder else ""
        if folder and len(os.fsencode(folder)) > SOCKET - OF_RAY:
            why = f"with the part of Ray, the path of a socket there has more than {SOCKET} bytes"
        if why:
            error = ConfigError(f"{name}={folder}: {why}", rule="Ray's files of a run are there", fix="set another one")
            yield unless_elsewhere(config, error)
    file = Path(config.ray_kwargs.get("timeline_json_file") or "timeline.json")
    if file.is_dir() or not file.parent.is_dir() or not_writable(file.parent):
        yield missing(config, "ray_kwargs.timeline_json_file", str(file), "a file in a folder that can be written")
    if (folder := given[setting]) and not os.path.isabs(folder):
        rule, fix = "Ray takes an absolute path", f"set {setting}={Path(folder).absolute()}"
        yield ConfigError(f"{setting}={folder}", rule=rule, fix=fix)
    if "RAY_OVERRIDE_RESOURCES" in os.environ:
        reason = "Ray then has these, and whether the run fits was not checked"
        yield ConfigWarning("RAY_OVERRIDE_RESOURCES is set", reason, "unset it, and set ray_kwargs.ray_init.num_cpus")


def _absent(config: DictConfig, cluster: str | None) -> str:
    """Why a cluster that the command or the environment names is not there."""
    if cluster == "auto":
        return "`ray start` has left no address on this machine"
    named = cluster in (OmegaConf.select(config, f"{RAY_INIT}.address"), os.environ.get("RAY_ADDRESS"))
    if not cluster or cluster == "local" or not named:
        return ""
    return no_connection(cluster) if ADDRESS.fullmatch(cluster) else f"{cluster} is no host:port and no ray://host:port"


def _runtime_env(config: DictConfig) -> Iterator[Problem]:
    """What Ray would refuse when the run starts, or not read."""
    given = OmegaConf.select(config, f"{RAY_INIT}.runtime_env")
    if not isinstance(given, DictConfig):
        return
    from ray.runtime_env import RuntimeEnv

    known = [name for name in inspect.signature(RuntimeEnv).parameters if name not in ("kwargs", "_validate")]
    for name in map(str, given):
        if name not in known and (meant := closest(name.replace("_", ""), known, cutoff=0.7)):
            reason = "Ray knows no such field, and does not read it"
            yield ConfigWarning(f"{RAY_INIT}.runtime_env.{name}", reason=reason, fix=f"did you mean {meant}?")
    try:
        RuntimeEnv(**cast(Fields, OmegaConf.to_container(given, resolve=True)))
    except (ValueError, TypeError) as error:
        value = f"{RAY_INIT}.runtime_env: {str(error).splitlines()[0]}"
        yield ConfigError(value, rule="Ray makes the environment of the workers of it", fix="correct it")
    executable = str(given.get("py_executable") or sys.executable).split()[0]
    if shutil.which(executable) is None:
        yield missing(config, f"{RAY_INIT}.runtime_env.py_executable", executable, "the Python of the workers")
    variables = given.get("env_vars")
    platform = variables.get("VERL_PLATFORM") if isinstance(variables, DictConfig) else None
    for name, on in (("VERL_PLATFORM", platform), ("VERL_ENGINE_DEVICE", os.environ.get("VERL_ENGINE_DEVICE"))):
        if config.trainer.device == DEVICE and on not in (None, "", DEVICE):
            value, fix = f"{name}={on} of the workers", f"remove it; +platform=cpu sets {DEVICE}"
            yield ConfigError(value, rule="workers are on the run's platform", fix=fix)
    folder = given.get("working_dir")
    if isinstance(folder, str) and not is_remote(folder) and not Path(folder).expanduser().is_dir():
        yield missing(config, f"{RAY_INIT}.runtime_env.working_dir", folder, "a folder that Ray can send")


def check_addresses(run: Run, settings: Mapping[str, object]) -> Iterator[ConfigWarning]:
    """`settings` are the workflow's. A cluster that runs already may have more nodes, so the trainer looks again."""
    nodes = max((len(pool_shape(run, pool)) for pool in used_pools(run.mas)), default=1)
    if nodes > 1:
        yield from loopback_servers(run.mas, settings, nodes)
