"""Checkpoints of a run: one folder per policy, and the run's state. Only complete checkpoints are used."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from ray.exceptions import RayActorError, RayTaskError

from verl_mas.advantage import ESTIMATORS, RunningScores, options_for
from verl_mas.config.adapters import bases
from verl_mas.config.merge import CRITIC, snapshots
from verl_mas.config.modes import COLOCATED, KEY, SEPARATE
from verl_mas.config.placement import pool_shape
from verl_mas.config.run import Run, View
from verl_mas.errors import ConfigError, ConfigWarning, DiskError, ForeignError, MasError, foreign, raise_all
from verl_mas.planning.model_folder import local_folder, readable_json
from verl_mas.run_folder import checkpoints
from verl_mas.run_folder.checkpoints import DATA_FILE, Checkpoint, choices, folder_of_step
from verl_mas.run_folder.disk import free_space, known_by
from verl_mas.util.later import np, torch
from verl_mas.verl_.types import Fields
from verl_mas.workflow.agents import QUEUE
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.team_file import TeamFile

RNG_FILE = "driver_rng.pt"
# Key in `run.json` of the number of tasks in flight.
IN_FLIGHT = "tasks in flight"
# Two keys in `run.json`: the settings with which each policy's weights are stored, and the bases of adapters.
STORED, BASES = "stored weights", "bases"
# Key in the settings of an adapter.
ADAPTER_OF = "adapter_of"
LOADERS = "data.dataloader_num_workers"
CONFIG = "config.json"
Problem = ConfigError | ConfigWarning
RUNNING_FILE = "running_scores.json"
_SCORES = "scores"  # key in RUNNING_FILE
# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")


class Saved(Protocol):
    """A policy whose state must be saved, because the files of its model do not contain it."""

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """Write into the folder of a checkpoint. `keep`: the number of checkpoints in which verl's workers keep their
        files; None: all."""

    def load(self, folder: str, delete: bool) -> None:
        """Read from the folder of a checkpoint."""


class Queue(Protocol):
    """The tasks that are dispatched but not trained on yet, with the rows of finished tasks."""

    def save(self, folder: Path) -> int:
        """Write the tasks into a folder, and return their number."""

    def restore(self, folder: Path) -> None:
        """Read the tasks from a folder that `save` has written."""


@dataclass
class RunningState:
    """The running scores of a run. `of` names the team, estimator and weighting to which the scores belong. A run with
    another team, estimator or weighting cannot use the scores."""

    of: Mapping[str, object]
    scores: RunningScores = field(default_factory=RunningScores)

    def save(self, folder: Path) -> None:
        (folder / RUNNING_FILE).write_text(json.dumps({**self.of, _SCORES: self.scores.to_list()}, indent=1))

    def load(self, folder: Path) -> None:
        """Load the running scores from a checkpoint's folder that `problems` accepts. If the folder has no scores, the
        scores restart."""
        if (folder / RUNNING_FILE).exists():
            self.scores = RunningScores.from_list(_saved(folder)[_SCORES])

    def problems(self, folder: Path) -> Iterator[Problem]:
        """Yield errors if a run cannot resume with the scores in a folder, or a warning if the scores restart."""
        path = folder / RUNNING_FILE
        if not path.exists():
            yield ConfigWarning(
                f"{folder} has no {RUNNING_FILE}",
                reason="its run kept none; they restart with this run, as agent/<role>/group/running_count shows",
                fix="resume from a checkpoint that has them, unless the estimator or its shrinkage is new to the run",
            )
            return
        try:
            saved = _saved(folder)
            RunningScores.from_list(saved[_SCORES])
        except (ValueError, TypeError, KeyError):
            value, rule = f"{path} cannot be read", "it has the running scores of a run as JSON"
            yield ConfigError(value, rule=rule, fix=choices(folder.parent, without=folder))
            return
        for key, own in self.of.items():
            if saved.get(key) != own:
                yield ConfigError(
                    f"{path} is of {key}={saved.get(key)}, and this run has {own}",
                    rule="running scores are compared with scores of the same team, estimator and weighting",
                    fix="have the same as in that run; or remove the file, and they restart; or start a new run with "
                    "trainer.resume_mode=disable",
                )


def running_state(run: Run) -> RunningState | None:
    """Create the state of a run whose estimator remembers scores; None for other estimators."""
    name = str(run.config.algorithm.adv_estimator)
    # `check_estimator` refuses unknown estimators.
    options = options_for(name, run.mas.advantage) if name in ESTIMATORS else None
    if options is None or not ESTIMATORS[name].reads_running(options):
        return None
    roles = sorted({policy.role for policy in agents_of(run.mas).values()})
    of = {"algorithm.adv_estimator": name, "mas.advantage.weighting": options.weighting, "roles": roles}
    return RunningState(of)


def _saved(folder: Path) -> Fields:
    content: Fields = json.loads((folder / RUNNING_FILE).read_bytes())
    return content


@dataclass
class Checkpoints:
    """Saves and loads checkpoints. verl's trainer has this object in place of its worker group, and so calls the
    object's `load_checkpoint`."""

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
                # The folder was left incomplete by a crash, or the run has resumed from an earlier checkpoint.
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
            checkpoints.complete(folder, facts)
        self._written.append(folder)
        while self._keep and len(self._written) > self._keep:
            checkpoints.remove(self._written.pop(0))
        return folder

    @property
    def _keep(self) -> int | None:
        """Number of checkpoints to keep, one more than configured; None: all. verl's workers delete the oldest
        checkpoint before they write a new one. If the run is killed between the saves of two policies, the extra
        checkpoint is still complete."""
        removes = self.trainer.get("remove_previous_ckpt_in_save")
        keep: int | None = 1 if removes else self.trainer.max_actor_ckpt_to_keep
        return keep and keep + 1

    def load_checkpoint(self, local_path: str, del_local_after_load: bool = False) -> None:
        folder = Path(local_path).parent
        if folder.parent == Path(self.trainer.default_local_dir).absolute():
            until, whole = checkpoints.step_of(folder) or 0, checkpoints.whole_checkpoints(folder.parent)
            self._written = [one.folder for one in whole if one.step <= until]
        if self.running:
            with reading(folder, RUNNING_FILE):
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
    """Raise DiskError if a part of a checkpoint cannot be written, here or in the workers of a policy."""
    try:
        yield
    except (OSError, RuntimeError, RayTaskError) as error:  # torch.save raises RuntimeError on a full disk
        checkpoint = path if path.name.startswith("global_step_") else path.parent
        value = f"{path} cannot be written: {_cause(error)}; {free_space(path)}"
        rule = "a checkpoint is used only if it is complete"
        fix = f"make room and run the command again; {choices(checkpoint.parent)}"
        raise DiskError(value, rule=rule, fix=fix) from error


@contextmanager
def reading(folder: Path, part: str) -> Iterator[None]:
    """Raise DiskError if a part of the checkpoint in `folder` cannot be loaded, here or in the workers of a policy."""
    try:
        # Do not convert errors of verl-mas and lost processes, because they do not come from a damaged file.
        with foreign(MasError, RayActorError):
            yield
    except ForeignError as failed:
        files = ", ".join(checkpoints.damaged(folder / part, "*.pt"))
        value = f"{folder / part} cannot be read: {files + ': ' if files else ''}{_cause(failed.error)}"
        rule = "a run resumes from a checkpoint that can be read"
        fix = choices(folder.parent, without=folder)
        raise DiskError(value, rule=rule, fix=fix) from failed.error


def check_resume(checkpoint: Checkpoint, run: Run, identity: Mapping[str, object]) -> None:
    """Raise the errors of `resume_problems`, and log its warnings."""
    problems = list(resume_problems(checkpoint, run, identity))
    raise_all(problem for problem in problems if isinstance(problem, ConfigError))
    for warning in problems:
        logger.warning("%s", warning)


def resume_problems(checkpoint: Checkpoint, run: Run, identity: Mapping[str, object]) -> Iterator[Problem]:
    """Yield an error for each reason why a run cannot resume from a checkpoint, and a warning for each part of the
    run's state that the run would not continue."""
    missing = list(other_policies(checkpoint.folder, [*run.trained, *snapshots(run.mas), *bases(run.mas)]))
    yield from missing or differences(checkpoint, identity, run.config)
    if (tasks := checkpoint.run.get(IN_FLIGHT)) and not (run.mode and run.mode.asynchronous):
        yield ConfigWarning(
            f"{checkpoint.folder} has {tasks} tasks in flight, and this run is synchronous",
            reason="it continues with the data behind them, so these tasks are not trained on in this epoch",
            fix=f"resume with {KEY}={COLOCATED.name} or {SEPARATE.name} to train on them",
        )
    if running := running_state(run):
        yield from running.problems(checkpoint.folder)


def other_policies(folder: Path, policies: Iterable[str]) -> Iterator[ConfigError]:
    """Yield an error if the checkpoint in a folder lacks one of these policies."""
    saved = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != QUEUE)
    missing = [name for name in policies if name not in saved]
    # If no policy is here, yield no error: when each node writes to its own disk, policies may be on other nodes.
    if missing and saved:
        value = f"{folder} has no policy {', '.join(missing)}; it has {', '.join(saved)}"
        rule = "a run resumes with the trainable policies, their bases and the snapshots that it was saved with"
        fix = "name the policies as in that run, or set trainer.resume_mode=disable"
        yield ConfigError(value, rule=rule, fix=fix)


def differences(checkpoint: Checkpoint, run: Mapping[str, object], config: DictConfig) -> Iterator[ConfigError]:
    """Yield an error for each reason why a run with this identity cannot resume from a checkpoint.

    The checkpoint may belong to another run only if the configuration names the checkpoint, or if this run is an
    evaluation.
    """
    folder = checkpoint.folder
    for name, before, now in _changed(checkpoint, run, STORED):
        weights = f", from its weights with mas.policies.{name}.overrides.model.lora_adapter_path={folder / name}"
        yield ConfigError(
            f"{folder} has policy {name} with {_text(before)}, and this run with {_text(now)}",
            rule="weights are loaded with the same strategy, number of processes, optimiser and vocabulary; an adapter "
            "keeps its base, rank, alpha and modules",
            fix="have the same as in that run, or start a new run with trainer.resume_mode=disable"
            + (weights if ADAPTER_OF in before else ""),
        )
    for name, before, now in _changed(checkpoint, run, BASES):
        yield ConfigError(
            f"the adapters in {folder} were trained on {_text(before)}, and base {name} of this run is {_text(now)}",
            rule="adapters are trained and served on the weights of one base, and checkpoints do not contain the base",
            fix=f"set model.path of policy {name} to the model of that run, or trainer.resume_mode=disable",
        )
    if (saved := checkpoint.run.get(LOADERS)) not in (None, run.get(LOADERS)):
        value = f"{folder} was saved with {LOADERS}={saved}, and this run has {run.get(LOADERS)}"
        rule = "a data loader resumes with the number of workers with which it was saved"
        yield ConfigError(value, rule=rule, fix=f"set {LOADERS}={saved}")
    if config.trainer.resume_mode != "auto" or config.trainer.val_only:
        return
    for key, own in run.items():
        if key not in (BASES, STORED, LOADERS) and checkpoint.run.get(key, own) != own:
            yield ConfigError(
                f"{folder} was trained with {key}={checkpoint.run[key]}, and this run has {own}",
                rule="a run resumes from the last checkpoint of its folder",
                fix="set another trainer.default_local_dir; to resume from this checkpoint nevertheless, set "
                f"{checkpoint.arguments}",
            )


def run_identity(run: Run) -> dict[str, object]:
    """Return the settings that must not change when a run resumes. Lengths, sizes and addresses may change."""
    specs, shared = run.mas.policies, bases(run.mas)
    full = [name for name in run.trained if not specs[name].adapter_of]
    # Only the name of the folder is compared, because a folder may be moved, or may be a copy of a model on the hub.
    models = {name: Path(str(run.view(name).value("model.path"))) for name in [*full, *shared]}
    return {
        "algorithm.adv_estimator": str(run.config.algorithm.adv_estimator),
        LOADERS: run.config.data.dataloader_num_workers,
        "mas.workflow.name": run.mas.workflow.name,
        "policy of agents": {name: policy.spec.policy for name, policy in agents_of(run.mas).items()},
        "mas.swap.agents": list(run.mas.swap.agents),
        "snapshots": {name: spec.snapshot.of for name, spec in specs.items() if spec.snapshot},
        "models": {name: models[name].name for name in full},
        STORED: {name: _stored(run, name) for name, spec in specs.items() if spec.adapter_of or spec.is_trained},
        # A checkpoint does not contain the weights of a base, so identify the base.
        BASES: {
            name: {"model": models[name].name, "fingerprint": fingerprint(models[name]), **_vocabulary(run.view(name))}
            for name in shared
        },
    }


def _stored(run: Run, name: str) -> Fields:
    view, pool = run.view(name), run.mas.policies[name].pool
    lora = _lora_settings(view)
    if view.spec.adapter_of:
        return {ADAPTER_OF: view.spec.adapter_of, **lora}
    strategy = str(view.value("actor.strategy"))
    # With other strategies, any number of processes can load the weights.
    sharded = strategy.startswith("fsdp") and pool in run.mas.pools
    stored: Fields = {"processes": sum(pool_shape(run, pool)) if sharded else None, "strategy": strategy}
    stored |= lora if lora["lora_rank"] else {"lora_rank": 0}
    stored |= {"optimizer": view.get("actor.optim.optimizer"), **_vocabulary(view)}
    if run.critics:
        stored |= {CRITIC: Path(view.critic_path).name, "critic strategy": run.config.critic.strategy}
        stored["critic optimizer"] = OmegaConf.select(run.config, "critic.optim.optimizer")
    return stored


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


def _lora_settings(view: View) -> Fields:
    values = {key: view.value(f"model.{key}") for key in ("lora_rank", "lora_alpha", "target_modules")}
    values["exclude_modules"] = view.get("model.exclude_modules") or []
    return {key: list(value) if isinstance(value, ListConfig) else value for key, value in values.items()}


def fingerprint(model: Path) -> str | None:
    """Hash a model folder's configuration and parts of its weight files; None without such files, as for a hub name."""
    files = sorted([*model.glob("*.safetensors"), *model.glob("*.bin")]) if model.is_dir() else []
    if not files:
        return None
    # Exclude two fields that change when the same model is saved again.
    config = json.loads((model / CONFIG).read_bytes()) if (model / CONFIG).is_file() else {}
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + known_by(file))
    return digest.hexdigest()[:16]


def _changed(checkpoint: Checkpoint, run: Mapping[str, object], key: str) -> Iterator[tuple[str, Fields, Fields]]:
    """Yield the policies whose settings differ from those in a checkpoint: name, saved and own settings.

    A run may have other policies than its checkpoint, unless they are adapters.
    """
    saved, own = (cast("Mapping[str, Fields]", of.get(key) or {}) for of in (checkpoint.run, run))
    if key == STORED:  # version 0.2.0 lists adapters under a key of their own
        saved = {**saved, **cast("Mapping[str, Fields]", checkpoint.run.get("adapters") or {})}
    for name in {**saved, **own}:
        before, now = saved.get(name, {}), own.get(name, {})
        if not _agree(before, now):
            yield name, before, now


def _agree(before: Fields, now: Fields) -> bool:
    """Whether the settings have equal values for all keys that are in both; two adapters must be equal in all keys. If
    only one of the two is an adapter, or if only `now` has a critic, the settings never agree, because the checkpoint
    lacks weights that the run would load."""
    if (ADAPTER_OF in before) != (ADAPTER_OF in now) or (before and CRITIC in now and CRITIC not in before):
        return False
    if ADAPTER_OF in now:
        return {"exclude_modules": [], **before} == dict(now)
    return all(before.get(key) in (None, value) for key, value in now.items() if value is not None)


def _text(settings: Fields) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "no adapter"


def _rng_state() -> Fields:
    # Use lists, because `torch.load` refuses arrays with `weights_only`, which is set so that a foreign checkpoint
    # cannot run code here.
    name, keys, *rest = np.random.get_state()
    numpy = (name, np.asarray(keys).tolist(), *rest)
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}


def _cause(error: BaseException) -> str:
    """Format an error in one line, without the stack that torch and Ray add to its text."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return ": ".join([type(cause).__name__, *str(cause).strip().splitlines()[:1]])
