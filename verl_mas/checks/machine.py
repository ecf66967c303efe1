"""Whether this installation and this machine can run it: plugin, versions, platform, Ray's resources."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires, version

from omegaconf import DictConfig
from packaging.requirements import Requirement

from verl_mas.checks.verl.place import target
from verl_mas.config.cluster import joined
from verl_mas.config.placement import CPUS_PER_GPU, Resources, require
from verl_mas.errors import ConfigError
from verl_mas.platform import DEVICE, selected
from verl_mas.registry import nearest


def check_plugin() -> Iterator[ConfigError]:
    """verl ignores a plugin that it cannot import, and logs that only at level DEBUG."""
    plugin = sys.modules.get("verl_mas.plugin")
    if "verl" in sys.modules and not (plugin and plugin.active()):
        # The error of importing the plugin in a new process; empty if it works.
        program = "import verl_mas.plugin as plugin, verl; assert plugin.active()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        why = "" if done.returncode == 0 else done.stderr.strip()
        value = "verl has not loaded the verl-mas plugin" + (f":\n{why}\n" if why else "")
        fix = "correct this error" if why else "unset VERL_USE_EXTERNAL_PLUGINS; `verl-mas doctor` shows more"
        yield ConfigError(value, rule="the plugin registers with verl what this run uses", fix=fix)


def check_versions() -> Iterator[ConfigError]:
    for requirement in requirements("verl-mas"):
        if requirement.name == "verl" and not requirement.specifier.contains(version("verl"), prereleases=True):
            rule = f"verl-mas {version('verl-mas')} needs verl {requirement.specifier}"
            yield ConfigError(f"verl {version('verl')} is installed", rule=rule, fix=f"pip install '{requirement}'")


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


def needed(config: DictConfig) -> Resources:
    """What the actors of verl reserve in a run without a team."""
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    # Beside the pool: the controller and the storage units of TransferQueue, and one CPU to place the rest.
    return Resources(gpus=gpus, cpus=CPUS_PER_GPU * gpus + units + 2)


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


def check_resources(config: DictConfig) -> Iterator[ConfigError]:
    have = available(config)
    if have is not None:
        yield from require(needed(config), have, "verl")
