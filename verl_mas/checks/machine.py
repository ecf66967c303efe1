"""Checks that this installation, this machine and its cluster have what a run needs: plugin, versions, platform,
packages, Ray."""

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import requires, version
from shutil import which

from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.place import no_connection, target, unless_elsewhere
from verl_mas.checks.refusals import Problem
from verl_mas.config.cluster import RAY_INIT, address, joined
from verl_mas.config.placement import Resources, cpus_needed, gpus_needed, pool_shape, require, used_pools
from verl_mas.engines.platform import DEVICE, selected
from verl_mas.errors import ConfigError, ConfigWarning, ForeignError, foreign

PLUGIN = "verl_mas.plugin"
INSTALL = "apt-get install cuda-toolkit-13-0, from NVIDIA's repository"  # CUDA's compiler
ADDRESS = re.compile(r"(\w+://)?[^/\s]+:\d+(/\S*)?")
# Loggers that need no package, and packages whose names differ from their loggers.
WITHOUT_PACKAGE = ("console", "file", None, "")
PACKAGES = {"vemlp_wandb": "volcengine_ml_platform"}


def check_plugin() -> Iterator[ConfigError]:
    """Check that verl has loaded the plugin. verl ignores a plugin that it cannot import, and logs this only at level
    DEBUG."""
    plugin = sys.modules.get(PLUGIN)
    if "verl" in sys.modules and not (plugin and plugin.active()):
        why = import_error()
        value = "verl has not loaded the verl-mas plugin" + (f": {why}" if why else "")
        fix = "correct this error" if why else "unset VERL_USE_EXTERNAL_PLUGINS; `verl-mas doctor` shows more"
        yield ConfigError(value, rule="the plugin registers with verl what this run uses", fix=fix)


def import_error() -> str:
    """Import the plugin, and return the error of the import, which verl hides; empty if the import succeeds."""
    try:
        with foreign():
            importlib.import_module(PLUGIN)
    except ForeignError as failed:
        last = traceback.extract_tb(failed.error.__traceback__)[-1]
        return f"{failed} ({last.filename}, line {last.lineno})"
    return ""


def check_versions() -> Iterator[ConfigError]:
    """Check that the other checks can import and read this version of verl."""
    for requirement in requirements("verl-mas"):
        if requirement.name == "verl" and not requirement.specifier.contains(version("verl"), prereleases=True):
            rule = f"verl-mas {version('verl-mas')} needs verl {requirement.specifier}"
            yield ConfigError(f"verl {version('verl')} is installed", rule=rule, fix=f"pip install '{requirement}'")


def requirements(package: str) -> list[Requirement]:
    """The requirements of a package without its extras."""
    return [Requirement(line) for line in requires(package) or [] if "extra ==" not in line]


def check_device(config: DictConfig) -> Iterator[ConfigError]:
    device = config.trainer.device
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == DEVICE != device:
        value, rule = f"trainer.device={device} on the platform {DEVICE}", "+platform=cpu sets the device of the run"
        yield ConfigError(value, rule=rule, fix="remove trainer.device or +platform=cpu")
    if target() and device == DEVICE:
        rule = "a plan is about GPUs; a run on the CPU (+platform=cpu) needs only main memory"
        yield ConfigError(f"--gpus with trainer.device={device}", rule=rule, fix="remove +platform=cpu, or --gpus")


def check_packages(config: DictConfig) -> Iterator[Problem]:
    """Check that the packages of the loggers are installed. verl imports them only after it has loaded the models."""
    names = config.trainer.logger
    for name in [names] if isinstance(names, str | None) else names:
        package = PACKAGES.get(str(name), str(name))
        if name not in WITHOUT_PACKAGE and importlib.util.find_spec(package) is None:
            rule = f"verl imports {package} for it, and it is not installed"
            fix = f"install {package}, or remove {name}"
            yield unless_elsewhere(config, ConfigError(f"trainer.logger={name}", rule=rule, fix=fix))


def available(config: DictConfig) -> Resources | None:
    """The resources that Ray will have; None (unknown) if the run joins an existing cluster."""
    if not target() and joined(config):
        return None
    from ray._private.utils import get_num_cpus

    gpus, cpus = (config.ray_kwargs.ray_init.get(name) for name in ("num_gpus", "num_cpus"))
    if target():
        # With `--gpus`, the run is on other machines, whose GPUs the plan checks. Check here only the numbers of GPUs
        # and CPUs that the command sets.
        return Resources(*(sys.maxsize if count is None else count for count in (gpus, cpus)))
    return Resources(
        gpus=devices_here() if gpus is None else gpus,
        # Ray respects the limit of a container.
        cpus=get_num_cpus(override_docker_cpu_warning=True) if cpus is None else cpus,
    )


def nvcc() -> str | None:
    """The path of CUDA's compiler, searched where FlashInfer and SGLang search it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return which(f"{home}/bin/nvcc") if home else which("nvcc") or which("/usr/local/cuda/bin/nvcc")


def devices_here() -> int:
    """The number of GPUs or NPUs that Ray will find."""
    import torch

    if selected() or importlib.util.find_spec("torch_npu") is None:
        return torch.cuda.device_count()
    from verl.plugin.platform import get_platform

    return get_platform().device_count()


def _step_without_gpus(config: DictConfig) -> Problem | None:
    """Refuse a Slurm step without GPUs (commit 844f579e). A run that joins a cluster only gets a warning, because other
    nodes of the cluster may have GPUs."""
    if "SLURM_STEP_ID" not in os.environ or target() or config.trainer.device != "cuda" or devices_here():
        return None
    value, why = "this Slurm step has no GPU", "a step has GPUs that are asked for by number, not those of --exclusive"
    gpus = f"--gpus-per-node={config.trainer.n_gpus_per_node}"
    fix = f"srun {gpus} --cpus-per-task=$SLURM_CPUS_ON_NODE --cpu-bind=none, as in docs/train/clusters.md"
    return ConfigWarning(value, why, fix) if joined(config) else ConfigError(value, rule=why, fix=fix)


def check_resources(run: ExaminedRun) -> Iterator[Problem]:
    """Check that the GPUs of a run exist, because Ray would wait for missing GPUs: verl#2515, verl#5954, verl#372,
    OpenRLHF/OpenRLHF#492."""
    config, have = run.config, available(run.config)
    if problem := _step_without_gpus(config):
        yield problem
        return
    if have is None:
        return
    visible, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), config.ray_kwargs.ray_init.get("num_gpus") or 0
    if visible is not None and not target() and gpus > (seen := len(list(filter(None, visible.split(","))))):
        value = f"CUDA_VISIBLE_DEVICES={visible} with {RAY_INIT}.num_gpus={gpus}"
        fix = "unset CUDA_VISIBLE_DEVICES, as +platform=cpu counts no real GPUs"
        yield ConfigError(value, rule=f"Ray starts with at most the {seen} GPUs that are visible", fix=fix)
    nodes = max((len(pool_shape(run, pool)) for pool in used_pools(run.mas)), default=1)
    if nodes > 1 and not target():
        reason = "no Ray cluster runs here, and one that the run starts has this machine only"
        yield ConfigWarning(f"a pool of {nodes} nodes", reason, "start the cluster with `ray start`")
    yield from require(Resources(gpus_needed(run), cpus_needed(run)), have, "the team" if run.mode else "verl")


def check_cluster(config: DictConfig) -> Iterator[Problem]:
    # With `--gpus`, the run is on other machines, so a cluster that is reachable from here does not matter.
    if not target() and (why := _absent(config, cluster := address(config))):
        rule = "a run joins the Ray cluster that it names, and Ray waits minutes for a missing cluster"
        fix = f"start it with `ray start --head`; or set ++{RAY_INIT}.address=local, which starts one of the run's own"
        yield ConfigError(f"the Ray cluster at {cluster}: {why}", rule=rule, fix=fix)


def _absent(config: DictConfig, cluster: str | None) -> str:
    """Explain why a cluster that the command or the environment names cannot be reached; empty if it can."""
    if cluster == "auto":
        return "`ray start` has left no address on this machine"
    named = cluster in (OmegaConf.select(config, f"{RAY_INIT}.address"), os.environ.get("RAY_ADDRESS"))
    if not cluster or cluster == "local" or not named:
        return ""
    return no_connection(cluster) if ADDRESS.fullmatch(cluster) else f"{cluster} is no host:port and no ray://host:port"
