"""Checkpoints of a run: one folder per policy, and the run's state. A checkpoint counts only if it is complete."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from omegaconf import DictConfig, ListConfig, OmegaConf
from ray.exceptions import RayActorError, RayTaskError

from verl_mas.config.adapters import bases
from verl_mas.config.merge import CRITIC, snapshots
from verl_mas.config.modes import COLOCATED, KEY, SEPARATE
from verl_mas.config.placement import pool_shape
from verl_mas.config.run import Run, View
from verl_mas.errors import ConfigError, ConfigWarning, DiskError, MasError, raise_all
from verl_mas.planning.model_folder import local_folder, readable_json
from verl_mas.run_folder.checkpoints import (
    DATA_FILE,
    Checkpoint,
    choices,
    complete,
    damaged,
    folder_of_step,
    remove,
    step_of,
    whole_checkpoints,
)
from verl_mas.run_folder.disk import free_space, known_by
from verl_mas.util.later import np, torch
from verl_mas.verl_.types import Fields
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.members import QUEUE
from verl_mas.workflow.team_file import TeamFile

if TYPE_CHECKING:
    from verl_mas.trainer.running import RunningState

RNG_FILE = "driver_rng.pt"
# Key in `run.json` of the number of tasks in flight.
IN_FLIGHT = "tasks in flight"
# Keys in `run.json` of the adapters of a run, and of their bases.
ADAPTERS, BASES = "adapters", "bases"
# Key in `run.json` of the settings with which each policy's weights are stored; adapters are under ADAPTERS.
STORED = "stored weights"
LOADERS = "data.dataloader_num_workers"
CONFIG = "config.json"


class Saved(Protocol):
    """A policy whose state must be saved, because it is not in the files of its model."""

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """Write into the folder of a checkpoint. `keep`: the number of checkpoints in which verl's workers keep their
        files; None: all."""

    def load(self, folder: str, delete: bool) -> None:
        """Read from the folder of a checkpoint."""


class Queue(Protocol):
    """The tasks that were read from the data and are not trained on yet, with the rows of finished tasks."""

    def save(self, folder: Path) -> int:
        """Write the tasks into a folder, and return their number."""

    def restore(self, folder: Path) -> None:
        """Read the tasks from a folder that `save` has written."""


@dataclass
class Checkpoints:
    """Saves and loads checkpoints. It replaces the worker group whose `load_checkpoint` verl's trainer calls."""

    policies: Mapping[str, Saved]
    trainer: DictConfig  # verl's section `trainer`
    run: Mapping[str, object]  # the identity of the run
    running: RunningState | None = None
    team: TeamFile | None = None  # the team's description, for exports
    queue: Queue | None = None  # the tasks in flight when a step is saved; None in a synchronous run
    # Complete checkpoints of this run, including those from before a resume.
    _written: list[Path] = field(default_factory=list, init=False)

    def save(self, step: int, data: Fields) -> Path:
        """Write a checkpoint and delete old ones; return its folder. `data`: the state of the data loader."""
        folder = folder_of_step(Path(self.trainer.default_local_dir).absolute(), step)
        remote = self.trainer.default_hdfs_dir and str(folder_of_step(Path(self.trainer.default_hdfs_dir), step))
        with writing(folder):
            if folder.exists():
                # A crash left the folder unfinished, or the run has resumed from an earlier checkpoint.
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
            facts = {**self.run}
            if self.queue:
                facts[IN_FLIGHT] = self.queue.save(folder / QUEUE)
            complete(folder, facts)
        self._written.append(folder)
        while self._keep and len(self._written) > self._keep:
            remove(self._written.pop(0))
        return folder

    @property
    def _keep(self) -> int | None:
        """Number of checkpoints to keep, one more than configured; None: all. verl's workers delete the oldest
        checkpoint before they write a new one. If the run breaks off between the saves of two policies, the extra
        checkpoint is still complete."""
        removes = self.trainer.get("remove_previous_ckpt_in_save")
        keep: int | None = 1 if removes else self.trainer.max_actor_ckpt_to_keep
        return keep and keep + 1

    def load_checkpoint(self, local_path: str, del_local_after_load: bool = False) -> None:
        folder = Path(local_path).parent
        if folder.parent == Path(self.trainer.default_local_dir).absolute():
            until, whole = step_of(folder) or 0, whole_checkpoints(folder.parent)
            self._written = [one.folder for one in whole if one.step <= until]
        raise_all(other_policies(folder, self.policies))
        if self.running:
            self.running.load(folder)
        for name, policy in self.policies.items():
            with reading(folder, name):
                policy.load(str(folder), del_local_after_load)
        if self.queue and (folder / QUEUE).exists():
            with reading(folder, QUEUE):
                self.queue.restore(folder / QUEUE)
        if (folder / RNG_FILE).exists():
            with reading(folder, RNG_FILE):
                state: Fields = torch.load(folder / RNG_FILE, weights_only=True)
                random.setstate(state["python"])
                np.random.set_state(state["numpy"])
                torch.set_rng_state(state["torch"])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing a part of a checkpoint, here or in a policy's workers, into DiskError."""
    try:
        yield
    except (OSError, RuntimeError, RayTaskError) as error:  # torch.save raises RuntimeError on a full disk
        checkpoint = path if path.name.startswith("global_step_") else path.parent
        value = f"{path} cannot be written: {_cause(error)}; {free_space(path)}"
        rule = "a checkpoint counts when all of it is written"
        fix = f"make room and run the command again; {choices(checkpoint.parent)}"
        raise DiskError(value, rule=rule, fix=fix) from error


@contextmanager
def reading(folder: Path, part: str) -> Iterator[None]:
    """Turn errors of loading a part of the checkpoint in `folder`, here or in a policy's workers, into DiskError."""
    try:
        yield
    except (MasError, RayActorError):
        # Do not convert these errors, because they do not come from a damaged file.
        raise
    except Exception as error:  # damaged bytes can raise anything
        files = ", ".join(damaged(folder / part, "*.pt"))
        value = f"{folder / part} cannot be read: {files + ': ' if files else ''}{_cause(error)}"
        rule = "a run resumes from a checkpoint that can be read"
        fix = choices(folder.parent, without=folder)
        raise DiskError(value, rule=rule, fix=fix) from error


def other_policies(folder: Path, policies: Iterable[str]) -> Iterator[ConfigError]:
    """Yield an error if the checkpoint in a folder lacks one of these policies."""
    saved = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != QUEUE)
    missing = [name for name in policies if name not in saved]
    # If each node writes to its own disk, parts of the checkpoint on other nodes are not visible here.
    if missing and saved:
        value = f"{folder} has no policy {', '.join(missing)}; it has {', '.join(saved)}"
        rule = "a run resumes with the trainable policies, their bases and the snapshots that it was saved with"
        fix = "name the policies as in that run, or set trainer.resume_mode=disable"
        yield ConfigError(value, rule=rule, fix=fix)


def differences(checkpoint: Checkpoint, run: Mapping[str, object], config: DictConfig) -> Iterator[ConfigError]:
    """Yield an error for each reason why a run of this identity cannot resume from a checkpoint.

    The checkpoint may belong to another run if the configuration names it, or if this run is an evaluation.
    """
    yield from other_adapters(checkpoint, run)
    for name, before, now in _changed(checkpoint, run, STORED):
        yield ConfigError(
            f"{checkpoint.folder} has policy {name} with {before}, and this run with {now}",
            rule="whole weights are loaded by as many processes of the same strategy, and know one vocabulary",
            fix="have the same as in that run, or start a new run with trainer.resume_mode=disable",
        )
    if (saved := checkpoint.run.get(LOADERS)) not in (None, run.get(LOADERS)):
        value = f"{checkpoint.folder} was saved with {LOADERS}={saved}, and this run has {run.get(LOADERS)}"
        rule = "a data loader reads the state of a data loader with as many workers"
        yield ConfigError(value, rule=rule, fix=f"set {LOADERS}={saved}")
    if config.trainer.resume_mode == "auto" and not config.trainer.val_only:
        yield from other_run(checkpoint, run)


def other_run(checkpoint: Checkpoint, run: Mapping[str, object]) -> Iterator[ConfigError]:
    """Yield the differences between the run of a checkpoint and this run, except for adapters and stored weights."""
    before, folder = checkpoint.run, checkpoint.folder
    for key, value in run.items():
        if key not in (ADAPTERS, BASES, STORED, LOADERS) and before.get(key, value) != value:
            yield ConfigError(
                f"{folder} was trained with {key}={before[key]}, and this run has {value}",
                rule="a run resumes from the last checkpoint of its folder",
                fix="set another trainer.default_local_dir; to resume from this checkpoint nevertheless, set "
                f"{checkpoint.arguments}",
            )


def in_flight_warnings(checkpoint: Checkpoint, asynchronous: bool) -> Iterator[ConfigWarning]:
    """Warn that a synchronous run ignores the tasks in flight in a checkpoint of an asynchronous run."""
    if not asynchronous and (tasks := checkpoint.run.get(IN_FLIGHT)):
        yield ConfigWarning(
            f"{checkpoint.folder} has {tasks} tasks in flight, and this run is synchronous",
            reason="it continues with the data behind them, so these tasks are not trained on in this epoch",
            fix=f"resume with {KEY}={COLOCATED.name} or {SEPARATE.name} to train on them",
        )


def run_identity(run: Run) -> dict[str, object]:
    """Return the settings that must not change when a run resumes. Lengths, sizes and addresses may change."""
    specs, shared = run.mas.policies, bases(run.mas)
    full = [name for name in run.trained if not specs[name].adapter_of]
    # Only the folder's name is compared later, because a folder may be moved or be a copy of the hub's model.
    models = {name: Path(str(run.view(name).value("model.path"))) for name in [*full, *shared]}
    identity: dict[str, object] = {
        "algorithm.adv_estimator": str(run.config.algorithm.adv_estimator),
        LOADERS: run.config.data.dataloader_num_workers,
        "mas.workflow.name": run.mas.workflow.name,
        "policy of agents": {name: member.spec.policy for name, member in agents_of(run.mas).items()},
        "mas.swap.agents": list(run.mas.swap.agents),
        "snapshots": {name: spec.snapshot.of for name, spec in specs.items() if spec.snapshot},
        "models": {name: models[name].name for name in full},
        STORED: {name: _stored(run, name) for name in full},
    }
    if shared:
        adapters = {name: _adapter_settings(run.view(name)) for name, spec in specs.items() if spec.adapter_of}
        # A checkpoint does not contain the weights of a base, so identify the base.
        of_bases = {
            name: {"model": models[name].name, "fingerprint": fingerprint(models[name]), **_vocabulary(run.view(name))}
            for name in shared
        }
        identity |= {ADAPTERS: adapters, BASES: of_bases}
    return identity


def _stored(run: Run, name: str) -> dict[str, object]:
    view, pool = run.view(name), run.mas.policies[name].pool
    strategy = str(view.value("actor.strategy"))
    # With other strategies, any number of processes can load the weights.
    sharded = strategy.startswith("fsdp") and pool in run.mas.pools
    processes = sum(pool_shape(run, pool)) if sharded else None
    lora = {key: value for key, value in _adapter_settings(view).items() if key != "adapter_of"}
    stored = lora if lora["lora_rank"] else {"lora_rank": 0}
    optimizer = view.get("actor.optim.optimizer")
    critic = {}
    if run.critics:
        critic = {CRITIC: Path(view.critic_path).name, "critic strategy": run.config.critic.strategy}
        critic["critic optimizer"] = OmegaConf.select(run.config, "critic.optim.optimizer")
    return {
        "processes": processes,
        "strategy": strategy,
        **stored,
        "optimizer": optimizer,
        **_vocabulary(view),
        **critic,
    }


def _vocabulary(view: View) -> dict[str, object]:
    """Hash the tokens and their ids, which do not change when a tokenizer is saved again.

    Returns an empty dict if no tokenizer is found.
    """
    folder = local_folder(str(view.get("model.tokenizer_path") or view.value("model.path")))
    content = readable_json(folder / "tokenizer.json") if folder else {}
    if not isinstance(model := content.get("model"), dict):
        return {}
    tokens = json.dumps([model.get("vocab"), content.get("added_tokens")], sort_keys=True)
    return {"vocabulary": hashlib.sha256(tokens.encode()).hexdigest()[:16]}


def _configuration(model: Path) -> bytes:
    """Return a model's config.json without the fields that change when the same model is saved again."""
    config = json.loads((model / CONFIG).read_bytes())
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    return json.dumps(kept, sort_keys=True).encode()


def _adapter_settings(view: View) -> dict[str, object]:
    values = {key: view.value(f"model.{key}") for key in ("lora_rank", "lora_alpha", "target_modules")}
    if excluded := view.get("model.exclude_modules"):
        values["exclude_modules"] = excluded
    plain = {key: list(value) if isinstance(value, ListConfig) else value for key, value in values.items()}
    return {"adapter_of": view.spec.adapter_of, **plain}


def fingerprint(model: Path) -> str | None:
    """Hash a model folder's configuration and a small part of its weights; None for a name on the hub."""
    files = sorted([*model.glob("*.safetensors"), *model.glob("*.bin")]) if model.is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256(_configuration(model) if (model / CONFIG).is_file() else b"")
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + known_by(file))
    return digest.hexdigest()[:16]


def other_adapters(checkpoint: Checkpoint, run: Mapping[str, object]) -> Iterator[ConfigError]:
    """Yield an error for each difference between the adapters or bases of a run and of a checkpoint."""
    saved, own = _policies_in(checkpoint.run, ADAPTERS), _policies_in(run, ADAPTERS)
    for name in (name for name in dict.fromkeys([*saved, *own]) if saved.get(name) != own.get(name)):
        again = f", or from its weights with mas.policies.{name}.overrides.model.lora_adapter_path="
        yield ConfigError(
            f"{checkpoint.folder} has policy {name} with {_text(saved.get(name))}, and this run with "
            f"{_text(own.get(name))}",
            rule="a run resumes with the adapters of its checkpoint: their base, rank, alpha and modules",
            fix="have the same as in that run; or start a new run with trainer.resume_mode=disable"
            + (f"{again}{checkpoint.folder / name}" if name in saved else ""),
        )
    for name, before, now in _changed(checkpoint, run, BASES):
        yield ConfigError(
            f"the adapters in {checkpoint.folder} were trained on {before}, and the base {name} of this run is {now}",
            rule="adapters are trained and served on the weights of one base, of which no checkpoint has a copy",
            fix=f"set model.path of policy {name} to the model of that run, or trainer.resume_mode=disable",
        )


def _policies_in(run: Mapping[str, object], key: str) -> dict[str, dict[str, object]]:
    of_policies = run.get(key) or {}
    assert isinstance(of_policies, dict)
    return of_policies


def _changed(checkpoint: Checkpoint, run: Mapping[str, object], key: str) -> Iterator[tuple[str, str, str]]:
    """Yield the policies of the run whose settings differ from those in a checkpoint: name, saved and own settings."""
    saved = _policies_in(checkpoint.run, key)
    for name, own in _policies_in(run, key).items():
        if name in saved and not _agree(saved[name], own):
            yield name, _text(saved[name]), _text(own)


def _agree(before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """Whether both have the same values for the keys that both have. If only `now` has a critic, they do not agree,
    because the checkpoint has no critic to load."""
    if CRITIC in now and CRITIC not in before:
        return False
    return all(before.get(key) in (None, value) for key, value in now.items() if value is not None)


def _text(settings: Mapping[str, object] | None) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) if settings else "no adapter"


def saved_policies(run: Run) -> list[str]:
    """List the policies that have a folder in a checkpoint."""
    return [*run.trained, *snapshots(run.mas), *bases(run.mas)]


def _rng_state() -> Fields:
    # Use lists, because `weights_only` refuses arrays; it prevents a foreign checkpoint from running code here.
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
    }


def _cause(error: Exception) -> str:
    """Format an error in one line, without the stack that torch and Ray add to its text."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return ": ".join([type(cause).__name__, *str(cause).strip().splitlines()[:1]])
