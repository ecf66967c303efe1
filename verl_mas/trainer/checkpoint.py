"""Every policy under its own name in one checkpoint. verl writes the pointer to the latest one afterwards."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from omegaconf import DictConfig

from verl_mas.config.merge import policy_value, trained
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, raise_all
from verl_mas.verl_types import Fields
from verl_mas.workflow.base import agents_of

if TYPE_CHECKING:
    from verl_mas.trainer.policy_trainer import PolicyTrainer

RNG_FILE = "driver_rng.pt"
RUN_FILE = "run.json"


class Checkpoints:
    """In place of the worker group whose checkpoint verl's trainer saves and loads."""

    def __init__(self, policies: Mapping[str, PolicyTrainer], run: Mapping[str, object], resumes: bool):
        """`run` is the identity of the run. `resumes`: verl finds the checkpoint itself, in the run's folder, so one of
        another run is refused; a checkpoint that is given by its path is loaded."""
        self.policies, self.run, self.resumes = policies, run, resumes

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
        # Where each node has a disk of its own, the checkpoints of the others cannot be seen from here.
        if missing and found:
            raise ConfigError(
                f"{folder} has no policy {', '.join(missing)}; it has {', '.join(found)}",
                rule="a run resumes with the trainable policies that it was saved with",
                fix="name the policies as in that run, or set trainer.resume_mode=disable",
            )
        if self.resumes:
            raise_all(other_run(folder, self.run))
        for policy in self.policies.values():
            policy.load(str(folder), del_local_after_load)
        if (folder / RNG_FILE).exists():
            _restore_rng(torch.load(folder / RNG_FILE, weights_only=False))


def latest_step(folder: Path) -> int:
    """The step of the latest checkpoint; 0 without one. verl's own reader imports all its training engines."""
    pointer = folder / "latest_checkpointed_iteration.txt"
    return int(pointer.read_text()) if pointer.exists() else 0


def auto_resumes(config: DictConfig) -> bool:
    """Whether training resumes from the latest checkpoint of the run's folder."""
    return config.trainer.resume_mode == "auto" and not config.trainer.val_only


def other_run(folder: Path, run: Mapping[str, object]) -> Iterator[ConfigError]:
    """How the run of a checkpoint differs from this one."""
    file = folder / RUN_FILE
    before = json.loads(file.read_text()) if file.exists() else run
    for key, value in run.items():
        if before.get(key, value) != value:
            yield ConfigError(
                f"{folder} was trained with {key}={before[key]}, and this run has {value}",
                rule="a run resumes from the last checkpoint of its folder",
                fix="set another trainer.default_local_dir; to resume from this checkpoint nevertheless, set "
                f"trainer.resume_mode=resume_path trainer.resume_from_path={folder}",
            )


def run_identity(config: DictConfig, mas: MasConfig) -> dict[str, object]:
    """What cannot change when a run resumes. Lengths, rates, sizes and addresses may: they are tuned during a run."""
    paths = {name: str(policy_value(config, mas.policies[name], "model.path")) for name in trained(mas)}
    return {
        "algorithm.adv_estimator": str(config.algorithm.adv_estimator),
        "mas.workflow.name": mas.workflow.name,
        "policy of agents": {name: member.spec.policy for name, member in agents_of(mas).items()},
        # A folder may move, or hold the hub's model of that name.
        "models": {name: Path(path).name for name, path in paths.items()},
    }


def _rng_state() -> Fields:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def _restore_rng(state: Fields) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
