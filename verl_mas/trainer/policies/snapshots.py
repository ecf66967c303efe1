"""Snapshots: policies with the weights that a trained policy had at an earlier step, such as opponents in self-play.

A refresh writes the weights to `<run>/snapshots/<policy>`, and the engines of the snapshot load them from there. While
the engines sleep they keep their weights, like the engines of a frozen policy. A checkpoint contains the folder in use
(as hard links if the file system supports them), so a resumed run plays against the same snapshot.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import ray
from omegaconf import DictConfig
from verl.single_controller.ray import RayResourcePool

from verl_mas.config.schema import SnapshotSpec
from verl_mas.errors import DiskError
from verl_mas.trainer.checkpoint import Saved
from verl_mas.trainer.metrics import of_policy
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.policies.weight_folder import record, step_of, use_folder

FOLDER = "snapshots"


class Snapshot(FrozenPolicy):
    """A local policy whose weights are replaced by the weights of a trained policy, at the steps that `spec` sets."""

    def __init__(self, name: str, view: DictConfig, pool: RayResourcePool, spec: SnapshotSpec):
        use_folder(view)
        super().__init__(name, view, pool)
        self.spec = spec
        # Step after which the trained policy had the weights of this snapshot; 0: the weights of the model's own files.
        self.step = 0
        self._folder: Path | None = None
        self._stale = False

    def take(self, source: PolicyTrainer, step: int) -> None:
        """Write the current weights of `source` to the folder. The engines load them when they wake up."""
        folder = Path(self.config.trainer.default_local_dir).absolute() / FOLDER / self.name
        source.write_weights(folder, step)
        self._replace(folder)

    def wake(self, step: int) -> None:
        super().wake(step)
        if self._stale:
            ray.get([worker.execute_checkpoint_engine.remote("use", str(self._folder)) for worker in self.receivers])
            ray.get([worker.update_weights.remote() for worker in self.receivers])
            self._stale = False

    @property
    def saved(self) -> dict[str, Saved]:
        return {self.name: self}

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """Save the snapshot in use into the folder of a checkpoint."""
        own = Path(folder, self.name)
        if self._folder:
            shutil.copytree(self._folder, own, copy_function=_link)
        else:
            own.mkdir()
            record(own, 0)

    def load(self, folder: str, delete: bool) -> None:
        """Load the snapshot from the folder of a checkpoint.

        The folder is kept even if `delete` is true, because the engines and the next checkpoint read it.
        """
        own = Path(folder, self.name)
        if step_of(own):
            self._replace(own)

    def _replace(self, folder: Path) -> None:
        if not folder.is_dir():
            value = f"{folder} is not there, although a worker has written it"
            rule = "a snapshot is on a file system that all nodes of the run share"
            fix = "set trainer.default_local_dir to a folder on such a file system"
            raise DiskError(value, rule=rule, fix=fix)
        self.step, self._folder, self._stale = step_of(folder), folder, True


def snapshots_in(policies: Mapping[str, LocalPolicy | FrozenPolicy]) -> dict[str, Snapshot]:
    return {name: policy for name, policy in policies.items() if isinstance(policy, Snapshot)}


def refresh(policies: Mapping[str, LocalPolicy | FrozenPolicy], step: int) -> None:
    """Refresh every snapshot that is due after this step. An evaluation does not change the folders of the run."""
    for snapshot in snapshots_in(policies).values():
        if snapshot.spec.due(step) and not snapshot.config.trainer.val_only:
            source = policies[snapshot.spec.of]
            assert isinstance(source, PolicyTrainer), "checks.snapshots refuses others"
            snapshot.take(source, step)


def snapshot_metrics(policies: Mapping[str, LocalPolicy | FrozenPolicy], step: int) -> dict[str, float]:
    """Return the metrics of snapshots. The replies of `step` are sampled with the weights after step `step - 1`."""
    values: dict[str, float] = {}
    for name, snapshot in snapshots_in(policies).items():
        values |= of_policy(name, {"snapshot/step": snapshot.step, "snapshot/age": step - 1 - snapshot.step})
    return values


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # A file system without hard links.
        shutil.copy2(source, target)
