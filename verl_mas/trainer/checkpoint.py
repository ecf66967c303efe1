"""Every policy under its own name in one checkpoint. verl writes the pointer to the latest one afterwards."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import DictConfig

from verl_mas.config.merge import policy_value, trained
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, raise_all
from verl_mas.workflow.base import agents_of

if TYPE_CHECKING:
    from verl_mas.trainer.policy_trainer import PolicyTrainer

RNG_FILE = "driver_rng.pt"
RUN_FILE = "run.json"


class Checkpoints:
    """Answers verl's trainer where it saves and loads "the actor"."""

    def __init__(self, policies: Mapping[str, PolicyTrainer], run: Mapping[str, Any], found_by_itself: bool):
        """`run` says what is trained. A checkpoint of another run is refused when verl finds it by itself in the run's
        folder; asked for by its path, it is loaded."""
        self.policies, self.run, self.found_by_itself = policies, run, found_by_itself

    def save_checkpoint(
        self, actor_path: str, remote_path: str | None, step: int, max_ckpt_to_keep: int | None = None
    ) -> None:
        folder = os.path.dirname(actor_path)
        remote = remote_path and os.path.dirname(remote_path)
        # verl's workers delete the oldest before they write the newest: keep one more, so that a run which
        # breaks between two policies' saves still has a complete checkpoint.
        keep = max_ckpt_to_keep and max_ckpt_to_keep + 1
        for policy in self.policies.values():
            policy.save(folder, remote, step, keep)
        os.makedirs(folder, exist_ok=True)
        torch.save(_rng_state(), os.path.join(folder, RNG_FILE))
        Path(folder, RUN_FILE).write_text(json.dumps(self.run, indent=1))

    def load_checkpoint(self, local_path: str, del_local_after_load: bool = False) -> None:
        folder = Path(local_path).parent
        found = sorted(path.name for path in folder.iterdir() if path.is_dir())
        missing = [name for name in self.policies if name not in found]
        # With disks of their own, the nodes' checkpoints cannot be seen from here.
        if missing and found:
            raise ConfigError(
                f"{folder} has no policy {', '.join(missing)}; it has {', '.join(found)}",
                rule="a run resumes with the trainable policies that it was saved with",
                fix="name the policies as in that run, or set trainer.resume_mode=disable",
            )
        if self.found_by_itself:
            raise_all(other_run(folder, self.run))
        for policy in self.policies.values():
            policy.load(str(folder), del_local_after_load)
        if (folder / RNG_FILE).exists():
            _restore_rng(torch.load(folder / RNG_FILE, weights_only=False))


def latest_step(folder: Path) -> int:
    """Where verl's pointer points; 0 without one. verl's own reader imports all its training engines."""
    pointer = folder / "latest_checkpointed_iteration.txt"
    return int(pointer.read_text()) if pointer.exists() else 0


def auto_resumes(config: DictConfig) -> bool:
    """Whether training starts from a checkpoint that verl finds by itself."""
    return config.trainer.resume_mode == "auto" and not config.trainer.val_only


def other_run(folder: Path, run: Mapping[str, Any]) -> Iterator[ConfigError]:
    """How the run of a checkpoint differs from this one."""
    file = folder / RUN_FILE
    before = json.loads(file.read_text()) if file.exists() else run
    for key, value in run.items():
        if before.get(key, value) != value:
            yield ConfigError(
                f"{folder} was trained with {key}={before[key]}, and this run has {value}",
                rule="a run goes on from the last checkpoint of its folder",
                fix="another trainer.default_local_dir for another run; to go on from this one all the same, "
                f"trainer.resume_mode=resume_path trainer.resume_from_path={folder}",
            )


def run_identity(config: DictConfig, mas: MasConfig) -> dict[str, Any]:
    """What makes it another run when it changes. Lengths, rates, sizes, addresses may: runs are tuned as they go on."""
    paths = {name: str(policy_value(config, mas.policies[name], "model.path")) for name in trained(mas)}
    return {
        "algorithm.adv_estimator": str(config.algorithm.adv_estimator),
        "mas.workflow.name": mas.workflow.name,
        "policy of agents": {name: member.spec.policy for name, member in agents_of(mas).items()},
        # A folder may move, or stand for the hub's model of that name.
        "models": {name: Path(path).name for name, path in paths.items()},
    }


def _rng_state() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def _restore_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
