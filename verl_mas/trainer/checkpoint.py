"""Every policy under its own name in one checkpoint, which counts only when all its parts are written."""

from __future__ import annotations

import random
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from omegaconf import DictConfig
from ray.exceptions import RayActorError, RayTaskError

from verl_mas.config.adapters import bases
from verl_mas.config.merge import snapshots, trained
from verl_mas.config.modes import COLOCATED, KEY, SEPARATE
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning, DiskError, MasError, raise_all
from verl_mas.run_folder.checkpoints import DATA_FILE, Checkpoint, choices, complete, folder_of_step, remove_shells
from verl_mas.run_folder.disk import free_space
from verl_mas.trainer.adapter_identity import ADAPTERS, BASES, adapter_identity
from verl_mas.util.later import np, torch
from verl_mas.verl_.types import Fields
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.team_file import TeamFile

if TYPE_CHECKING:
    from verl_mas.trainer.running import RunningState

RNG_FILE = "driver_rng.pt"
# Of TransferQueue, where tasks are in flight. verl would load its own name for it in the middle of the weights.
QUEUE_FOLDER = "queue"
# How many tasks those are, in `run.json`.
IN_FLIGHT = "tasks in flight"


class Saved(Protocol):
    """A policy with a state that no file of its model has: a trained one, or a snapshot."""

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """Into the folder of a checkpoint. `keep`: delete it in all but so many checkpoints."""

    def load(self, folder: str, delete: bool) -> None:
        """From the folder of a checkpoint."""


class Queue(Protocol):
    """The tasks that were read from the data and are not trained on yet, with the rows of those that have finished."""

    def save(self, folder: Path) -> int:
        """Returns how many tasks there are."""

    def restore(self, folder: Path) -> None:
        """From the folder that `save` has written."""


class Kept:
    """The folders of a policy in the checkpoints of this run, of which the last ones stay."""

    def __init__(self) -> None:
        self._folders: list[Path] = []

    def add(self, folder: Path, keep: int | None) -> None:
        """A folder that has been written. `keep`: how many stay, None for all."""
        self._folders.append(folder)
        while keep and len(self._folders) > keep:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)


class Checkpoints:
    """In place of the worker group whose checkpoint verl's trainer loads."""

    def __init__(
        self,
        policies: Mapping[str, Saved],
        trainer: DictConfig,
        run: Mapping[str, object],
        running: RunningState | None = None,
        team: TeamFile | None = None,
        queue: Queue | None = None,
    ):
        """`trainer` is verl's section of that name, `run` the identity of the run, `team` what is to be exported.

        `queue` has the tasks that are in flight when a step is saved; None if there are none.
        """
        self.policies, self.trainer, self.run, self.running, self.team = policies, trainer, run, running, team
        self.queue = queue
        self._queues = Kept()

    def save(self, step: int, data: Fields) -> Path:
        """`data` is the state of the data loader."""
        folder = folder_of_step(Path(self.trainer.default_local_dir).absolute(), step)
        remote = self.trainer.default_hdfs_dir and str(folder_of_step(Path(self.trainer.default_hdfs_dir), step))
        with writing(folder):
            if folder.exists():
                # A checkpoint that a crash left unfinished, or that a run which resumed from an earlier one repeats.
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        for name, policy in self.policies.items():
            with writing(folder / name):
                policy.save(str(folder), remote, step, self._keep)
        with writing(folder):
            torch.save(data, folder / DATA_FILE)
            torch.save(_rng_state(), folder / RNG_FILE)
            if self.running:
                self.running.save(folder)
            if self.team:
                replace(self.team, step=step).write(folder)
            in_flight = {}
            if self.queue:
                in_flight[IN_FLIGHT] = self.queue.save(folder / QUEUE_FOLDER)
                self._queues.add(folder / QUEUE_FOLDER, self._keep)
            complete(folder, {**self.run, **in_flight})
        remove_shells(folder.parent)
        return folder

    @property
    def _keep(self) -> int | None:
        """verl's workers delete the oldest before they write the newest: keep one more, so that a run which breaks
        between two policies' saves still has a complete checkpoint."""
        keep: int | None = (
            1 if self.trainer.get("remove_previous_ckpt_in_save") else self.trainer.max_actor_ckpt_to_keep
        )
        return keep and keep + 1

    def load_checkpoint(self, local_path: str, del_local_after_load: bool = False) -> None:
        folder = Path(local_path).parent
        raise_all(other_policies(folder, self.policies))
        if self.running:
            self.running.load(folder)
        for name, policy in self.policies.items():
            with reading(folder, name):
                policy.load(str(folder), del_local_after_load)
        if self.queue and (folder / QUEUE_FOLDER).exists():
            with reading(folder, QUEUE_FOLDER):
                self.queue.restore(folder / QUEUE_FOLDER)
        if (folder / RNG_FILE).exists():
            with reading(folder, RNG_FILE):
                state: Fields = torch.load(folder / RNG_FILE, weights_only=True)
                random.setstate(state["python"])
                np.random.set_state(state["numpy"])
                torch.set_rng_state(state["torch"])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around a write of a part of a checkpoint, here or by a policy's workers."""
    try:
        yield
    except (OSError, RuntimeError, RayTaskError) as error:  # torch.save raises RuntimeError on a full disk
        checkpoint = path if path.name.startswith("global_step_") else path.parent
        raise DiskError(
            f"{path} cannot be written: {_cause(error)}; {free_space(path)}",
            rule="a checkpoint counts when all of it is written",
            fix=f"make room and run the command again; {choices(checkpoint.parent)}",
        ) from error


@contextmanager
def reading(folder: Path, part: str) -> Iterator[None]:
    """Around the loading of a part of the checkpoint in `folder`, here or by a policy's workers."""
    try:
        yield
    except (MasError, RayActorError):
        # A lost process is not a damaged file.
        raise
    except Exception as error:  # damaged bytes can raise anything
        files = ", ".join(_damaged(folder / part))
        raise DiskError(
            f"{folder / part} cannot be read: {files + ': ' if files else ''}{_cause(error)}",
            rule="a run resumes from a checkpoint that can be read",
            fix=choices(folder.parent, without=folder),
        ) from error


def auto_resumes(config: DictConfig) -> bool:
    """Whether training resumes from the latest checkpoint of the run's folder."""
    return config.trainer.resume_mode == "auto" and not config.trainer.val_only


def other_policies(folder: Path, policies: Iterable[str]) -> Iterator[ConfigError]:
    """Whether the checkpoint in a folder lacks one of these policies."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != QUEUE_FOLDER)
    missing = [name for name in policies if name not in found]
    # Where each node has a disk of its own, the checkpoints of the others cannot be seen from here.
    if missing and found:
        yield ConfigError(
            f"{folder} has no policy {', '.join(missing)}; it has {', '.join(found)}",
            rule="a run resumes with the trainable policies, their bases and the snapshots that it was saved with",
            fix="name the policies as in that run, or set trainer.resume_mode=disable",
        )


def other_run(checkpoint: Checkpoint, run: Mapping[str, object]) -> Iterator[ConfigError]:
    """How the run of a checkpoint differs from this one, beside its adapters."""
    before, folder = checkpoint.run, checkpoint.folder
    for key, value in run.items():
        if key not in (ADAPTERS, BASES) and before.get(key, value) != value:
            yield ConfigError(
                f"{folder} was trained with {key}={before[key]}, and this run has {value}",
                rule="a run resumes from the last checkpoint of its folder",
                fix="set another trainer.default_local_dir; to resume from this checkpoint nevertheless, set "
                f"{checkpoint.arguments}",
            )


def left_out(checkpoint: Checkpoint, asynchronous: bool) -> Iterator[ConfigWarning]:
    """What a synchronous run does not take from the checkpoint of an asynchronous one."""
    if not asynchronous and (tasks := checkpoint.run.get(IN_FLIGHT)):
        yield ConfigWarning(
            f"{checkpoint.folder} has {tasks} tasks in flight, and this run is synchronous",
            reason="it continues with the data behind them, so these tasks are not trained on in this epoch",
            fix=f"resume with {KEY}={COLOCATED.name} or {SEPARATE.name} to train on them",
        )


def run_identity(run: Run) -> dict[str, object]:
    """What cannot change when a run resumes. Lengths, rates, sizes and addresses may: they are tuned during a run."""
    full = [name for name in run.trained if not run.mas.policies[name].adapter_of]
    paths = {name: str(run.view(name).value("model.path")) for name in full}
    return {
        "algorithm.adv_estimator": str(run.config.algorithm.adv_estimator),
        "mas.workflow.name": run.mas.workflow.name,
        "policy of agents": {name: member.spec.policy for name, member in agents_of(run.mas).items()},
        "mas.swap.agents": list(run.mas.swap.agents),
        "snapshots": {name: spec.snapshot.of for name, spec in run.mas.policies.items() if spec.snapshot},
        # A folder may move, or hold the hub's model of that name.
        "models": {name: Path(path).name for name, path in paths.items()},
        **adapter_identity(run),
    }


def saved_policies(mas: MasConfig) -> list[str]:
    """The policies of which a checkpoint has a folder."""
    return [*trained(mas), *snapshots(mas), *bases(mas)]


def _rng_state() -> Fields:
    # Lists, as `weights_only` reads no arrays: a checkpoint of others must not run code here.
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
    }


def _cause(error: Exception) -> str:
    """In one line: torch and Ray add the stack."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return ": ".join([type(cause).__name__, *str(cause).strip().splitlines()[:1]])


def _damaged(path: Path) -> Iterator[str]:
    """The files of torch that are cut or changed. Their errors do not name them."""
    for file in sorted(path.rglob("*.pt")) if path.is_dir() else []:
        try:
            with zipfile.ZipFile(file) as archive:
                intact = archive.testzip() is None
        except (zipfile.BadZipFile, OSError):
            intact = False
        if not intact:
            yield file.name
