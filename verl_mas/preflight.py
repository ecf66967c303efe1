"""Checks that cost nothing, made before Ray starts: each raises a ConfigError with value, rule and way out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement

from verl_mas import platform
from verl_mas.engines import vllm_cpu
from verl_mas.engines.vllm_cpu.readiness import check_heads, require_ready
from verl_mas.errors import ConfigError, MasError
from verl_mas.registry import nearest

# verl's ResourcePoolManager reserves this many CPUs beside every GPU.
CPUS_PER_GPU = 3


@contextlib.contextmanager
def or_exit() -> Iterator[None]:
    """Hydra turns an exception in a callback into a warning; only an exit stops the run."""
    try:
        yield
    except MasError as error:
        raise SystemExit(f"verl-mas: {error}") from error


def check_run(config: DictConfig) -> None:
    """What every run needs, team or not."""
    check_plugin()
    check_versions()
    check_platform()
    check_served(config)
    check_resources(config)


def check_served(config: DictConfig) -> None:
    """A model, and the engine that is to serve it: a run's own, or a policy's in its view."""
    engine, device = config.actor_rollout_ref.rollout.name, config.trainer.device
    check_engine(engine, device)
    check_model(config.actor_rollout_ref.model.path)
    if engine == vllm_cpu.NAME and device == platform.NAME:
        check_heads(config.actor_rollout_ref.model.path)


def check_plugin() -> None:
    """verl goes on without a plugin that it could not import, and says so only at its debug level."""
    plugin = sys.modules.get("verl_mas.plugin")
    if "verl" not in sys.modules or (plugin and plugin.active()):
        return
    raise ConfigError(
        "verl has not loaded the verl-mas plugin" + (f":\n{why}\n" if (why := plugin_error()) else ""),
        rule="what this run asks for is registered with verl by the plugin",
        way_out="mend that error" if why else "unset VERL_USE_EXTERNAL_PLUGINS; `verl-mas doctor` tells more",
    )


def plugin_error() -> str:
    """What importing the plugin says, in a process that has not tried it yet; empty when it works."""
    program = "import verl_mas.plugin as plugin, verl; assert plugin.active()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def check_versions() -> None:
    for requirement in requirements("verl-mas"):
        if requirement.name == "verl" and not requirement.specifier.contains(version("verl"), prereleases=True):
            raise ConfigError(
                f"verl {version('verl')} is installed",
                rule=f"verl-mas {version('verl-mas')} is made for verl {requirement.specifier}",
                way_out=f"pip install '{requirement}'",
            )


def requirements(package: str) -> list[Requirement]:
    """What a package always needs, its extras apart."""
    return [Requirement(line) for line in requires(package) or [] if "extra ==" not in line]


def check_platform() -> None:
    name = os.environ.get("VERL_PLATFORM", "").strip().lower()
    from verl.plugin.platform.platform_manager import PlatformRegistry

    known = list(PlatformRegistry.registered_names())
    if name and name not in known:
        raise ConfigError(
            f"VERL_PLATFORM={name}", rule="it names a platform that verl knows", way_out=nearest(name, known)
        )


def check_engine(name: str, device: str | None = None) -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    known = list(RolloutReplicaRegistry._registry)
    if name not in known:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name}",
            rule="it names a rollout engine that is registered with verl",
            way_out=nearest(str(name), known),
        )
    if name == vllm_cpu.NAME and device == platform.NAME:
        require_ready()


def check_model(path: str) -> None:
    """A local folder must hold a model, a tokenizer and a chat template; a hub's name is left to the hub."""
    if "://" in path:
        return
    folder = Path(os.path.expanduser(path))
    if not folder.is_dir():
        if folder.is_absolute() or path.count("/") != 1 or path.startswith((".", "~")):
            raise ConfigError(
                f"actor_rollout_ref.model.path={path}",
                rule="it is a folder in Hugging Face format, or the name of a model on the hub (owner/name)",
                way_out="give an existing folder",
            )
        return
    _require(folder, ["config.json"], "a model's config.json", "save the model with save_pretrained")
    _require(
        folder,
        ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"],
        "a tokenizer",
        "save the tokenizer beside the model with tokenizer.save_pretrained",
    )
    if not _has_chat_template(folder):
        raise ConfigError(
            f"{folder} has no chat template",
            rule="prompts are lists of messages, which a chat template turns into text",
            way_out="set tokenizer.chat_template and save the tokenizer again, or use an instruct model",
        )


def _require(folder: Path, any_of: list[str], noun: str, way_out: str) -> None:
    if not any((folder / name).exists() for name in any_of):
        raise ConfigError(f"{folder} has no {any_of[0]}", rule=f"a model folder holds {noun}", way_out=way_out)


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(json.loads(settings.read_text()).get("chat_template"))


@dataclass(frozen=True)
class Resources:
    gpus: float
    cpus: float


def needed(config: DictConfig) -> Resources:
    """What verl's actors reserve; one that cannot be placed makes verl wait for ever, without a message."""
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    # Beside the pool: TransferQueue's controller and storage units, and one CPU to place all the others with.
    return Resources(gpus=gpus, cpus=CPUS_PER_GPU * gpus + units + 2)


def available(config: DictConfig) -> Resources | None:
    """What Ray will have; None when it joins a running cluster, which alone can tell."""
    ray_init: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    if ray_init.get("address") or os.environ.get("RAY_ADDRESS"):
        return None
    gpus = ray_init.get("num_gpus")
    if gpus is None:
        import torch

        gpus = torch.cuda.device_count()
    return Resources(gpus=gpus, cpus=ray_init.get("num_cpus") or os.cpu_count() or 1)


def check_resources(config: DictConfig) -> None:
    have, want = available(config), needed(config)
    if have is None:
        return
    if have.gpus < want.gpus:
        raise ConfigError(
            f"trainer.nnodes x trainer.n_gpus_per_node asks for {want.gpus:g} GPUs, Ray will have {have.gpus:g}",
            rule="every worker process has a GPU of its own",
            way_out="lower trainer.n_gpus_per_node, or add +platform=cpu to run without a GPU",
        )
    if have.cpus < want.cpus:
        raise ConfigError(
            f"verl will reserve {want.cpus:g} CPUs, Ray will have {have.cpus:g}",
            rule=f"{CPUS_PER_GPU} a GPU, one a TransferQueue storage unit, and 2; verl waits for ever for fewer",
            way_out=f"set ray_kwargs.ray_init.num_cpus={want.cpus:g} (they need not be real), and lower "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
        )
