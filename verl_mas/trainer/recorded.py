"""Records that a run keeps in its own folder: how it started, its metrics and how it ended."""

from __future__ import annotations

import importlib
import logging
import math
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, cast

import ray
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import FileLogger, Tracking

from verl_mas.config.cluster import sent_command
from verl_mas.config.run import Run
from verl_mas.engines.facts import facts_of
from verl_mas.errors import DiskError, ForeignError, foreign
from verl_mas.rollout.trajectories import folder_of
from verl_mas.rollout.worker import ATTEMPT
from verl_mas.run_folder import about, worker_log
from verl_mas.run_folder.about import AboutFile
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.run_folder.lock import RunLock
from verl_mas.run_folder.metrics import file as metrics
from verl_mas.run_folder.metrics.file import MetricsFile
from verl_mas.trainer import timeline
from verl_mas.trainer.metrics import result_of
from verl_mas.util import cores, installed_version

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopManager

TRACKING = "Tracking"  # name of the class from which verl's trainer makes its loggers
# How a run can end -> the exit code for W&B, the status of MLflow, the state of SwanLab.
ENDS = {"finished": (0, "FINISHED", "success"), "failed": (1, "FAILED", "crashed"), "killed": (1, "KILLED", "aborted")}


class KeptFile(FileLogger):
    """A FileLogger that keeps lines up to step `until`.

    verl's FileLogger would empty an existing file (patch: file-logger-resume).
    """

    def __init__(self, project_name: str, experiment_name: str, until: float):
        path = metrics.file_of_verl(project_name, experiment_name)
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        kept, _ = metrics.split(text, until)
        super().__init__(project_name, experiment_name)
        self.fp.write("".join(f"{line}\n" for line in kept).encode())


@contextmanager
def logging_to(own: MetricsFile | None, until: float | None) -> Iterator[None]:
    """Add the run's own file to the loggers that verl's trainer makes in this context. Close all loggers at the end.

    `until`: the step up to which verl's log file keeps its lines; None in a new run, which overwrites the file.
    """
    made: list[Tracking] = []

    def with_ours(
        project_name: str, experiment_name: str, default_backend: str | list[str], config: Mapping[str, object]
    ) -> Tracking:
        names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        theirs = [name for name in names if until is None or name != metrics.LOGGER]
        # Exclude ATTEMPT, because in a run that resumes (MLFLOW_RUN_ID), MLflow refuses parameters whose values differ
        # from the values that it has stored.
        settings = {name: value for name, value in config.items() if name != ATTEMPT}
        # Let SwanLab make a section per agent, as trackio and MLflow do, instead of one for all agents.
        os.environ.setdefault("SWANLAB_SECTION_RULE_IDX", "1")
        tracking = Tracking(project_name, experiment_name, theirs, settings)
        made.append(tracking)
        loggers = cast(dict[str, object], tracking.logger)
        if until is not None and metrics.LOGGER in names:
            loggers[metrics.LOGGER] = KeptFile(project_name, experiment_name, until)
        if own is not None:
            # Put our file first, so that a step is in it even if another logger fails in that step.
            vars(tracking)["logger"] = {metrics.FILE: own, **loggers}
        return tracking

    verls = getattr(trainer_base, TRACKING)
    setattr(trainer_base, TRACKING, with_ours)
    how = "killed"
    try:
        yield
        how = "finished"
    except Exception:
        how = "failed"
        raise
    finally:
        setattr(trainer_base, TRACKING, verls)
        for tracking in made:
            close(tracking, how)


def close(tracking: Tracking, how: str) -> None:
    """Close the loggers with the end `how`, a key of ENDS. verl leaves this to the garbage collector, which reports a
    failed run as finished."""
    code, status, state = ENDS[how]
    try:
        with foreign():
            if "mlflow" in tracking.logger:
                importlib.import_module("mlflow").end_run(status)
            if "swanlab" in tracking.logger:
                tracking.logger.pop("swanlab").finish(state=state, error=how if state == "crashed" else None)
            tracking.finish(exit_code=code)
    except ForeignError as failed:  # only warn, because everything is saved, or another error ends the run
        logger.warning("The loggers of the run could not be closed: %s", failed.error)


PACKAGES = ("verl-mas", "verl", "torch", "transformers", "ray")
GIT_LIMIT_S = 5.0
GIB = 2**30


def attempt(run: Run, resumed: int | None) -> dict[str, object]:
    """Collect facts about a start of a run that are known in the trainer's process."""
    return {
        "started": now(),
        "resumed_from": resumed,
        "command": sent_command(),
        "folder": os.getcwd(),
        "versions": versions(run),
        "git": git_state(Path.cwd()),
        "seeds": dict(seeds(OmegaConf.to_container(run.config, resolve=True))),
        "host": {"name": socket.gethostname(), "cpus": cores(), "python": sys.executable},
        "cluster": cluster(ray.nodes(), run.config.trainer.device) if ray.is_initialized() else None,
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions(run: Run) -> dict[str, str | None]:
    """Return the versions of the packages that decide what a run computes, including its engines."""
    names = {run.view(name).get("rollout.name") for name, spec in run.mas.policies.items() if not spec.remote}
    engines = sorted(filter(None, (facts_of(str(name)).package for name in names)))
    installed = {package: installed_version(package) for package in dict.fromkeys([*PACKAGES, *engines])}
    return {"python": platform.python_version(), **installed}


def git_state(folder: Path) -> dict[str, object] | None:
    """Commit, branch and changed files; None outside a repository, or if git is not installed."""
    if (commit := _git(folder, "rev-parse", "HEAD")) is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    files = None if changed is None else [line[2:].strip() for line in changed.splitlines()]
    return {"commit": commit, "branch": branch, "changed_files": files}


def seeds(config: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Find every setting that is named `seed`."""
    for key, value in config.items() if isinstance(config, dict) else ():
        path = f"{name}.{key}" if name else str(key)
        if str(key).split(".")[-1] == "seed" and value is not None:
            yield path, value
        else:
            yield from seeds(value, path)


def cluster(nodes: Sequence[Mapping[str, object]], device: str) -> dict[str, object]:
    """Sum up the resources that Ray has.

    With device `cpu`, Ray's counts of GPUs and CPUs serve only for scheduling, so 0 and `cores()` replace them.

    `nodes` comes from `ray.nodes()`.
    """
    alive = [resources for node in nodes if node["Alive"] and isinstance(resources := node["Resources"], dict)]
    kinds = sorted({name.partition(":")[2] for node in alive for name in node if name.startswith("accelerator_type:")})
    gpus, cpus, memory = (sum(float(node.get(name, 0)) for node in alive) for name in ("GPU", "CPU", "memory"))
    if device == "cpu":
        gpus, cpus = 0, cores()
    return {"nodes": len(alive), "gpus": gpus, "gpu": kinds, "cpus": cpus, "memory_gib": round(memory / GIB, 1)}


def places(run: Run, folder: Path) -> str:
    """Format the paths of everything that a run writes as a block of lines for the log."""
    trainer, records = run.config.trainer, folder_of(run.mas.trajectories, str(folder))
    every, project, experiment = trainer.save_freq, trainer.project_name, trainer.experiment_name
    names = [trainer.logger] if isinstance(trainer.logger, str) else list(trainer.logger or ())
    files = {
        metrics.LOGGER: metrics.file_of_verl(project, experiment).absolute(),
        "tensorboard": Path(os.environ.get("TENSORBOARD_DIR", f"tensorboard_log/{project}/{experiment}")).absolute(),
    }
    rows = {
        "settings": str(folder / about.FILE),
        "metrics": str(folder / metrics.FILE),
        "timeline": str(folder / timeline.FILE),
        "sessions": str(records) if run.mas.trajectories.enabled else "none (mas.trajectories.enabled=false)",
        "checkpoints": f"{folder}/global_step_N, every {every} steps" if every > 0 else "none (trainer.save_freq=-1)",
        "loggers": ", ".join(f"{name} ({files[name]})" if name in files else name for name in names) or "none",
    }
    if (folder / worker_log.FILE).exists():
        rows["all output"] = str(folder / worker_log.FILE)
    return "\n".join([f"{worker_log.BEGINS}: {folder}", *(f"  {name:11} {where}" for name, where in rows.items())])


def ending(folder: Path, result: str) -> str:
    """Format the last lines of a run's output."""
    log, run = folder / worker_log.FILE, shlex.quote(str(folder))
    lines = [f"  {command:6} verl-mas {command} {run}" for command in ("report", "view")]
    return "\n".join([result, *lines, *([f"  {'log':6} {log}"] if log.exists() else [])])


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")


class Recorded(PPOTrainer):
    """A trainer that writes a run folder. An evaluation writes nothing, because a training may be using the folder."""

    run: Run
    lock: RunLock | None = None
    resumed: Checkpoint | None = None
    _about: AboutFile | None = None

    def record(self) -> None:
        """Record the start before anything is set up, so that a start that fails is recorded, too."""
        if self.lock is None:
            return
        start = attempt(self.run, self.resumed.step if self.resumed else None)
        self._about = AboutFile(self.lock.folder, start, OmegaConf.to_container(self.config, resolve=True))
        logger.info("%s", places(self.run, self.lock.folder))

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        step = self.resumed.step if self.resumed else None
        own = MetricsFile(self.lock.folder, step) if self.lock else None
        how = "interrupted"
        try:
            # An evaluation appends to verl's log file (`until` is infinite).
            with logging_to(own, step if own else math.inf):
                super().fit(agent_loop_manager)
            how = "finished"
        except Exception as error:
            how = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            raise
        finally:
            if own and self._about:
                self._end(own, self._about, how)

    def _end(self, metrics: MetricsFile, written: AboutFile, how: str) -> None:
        folder = metrics.path.parent
        try:
            written.end({"at": now(), "step": metrics.last, "by": how})
        except DiskError as error:
            # Only warn, because this error is not why the run has ended.
            logger.warning("%s", error)
        step = "" if metrics.last is None else f" | step {metrics.last}"
        logger.info("%s", ending(folder, f"{how}{step}{result_of(metrics.values)}"))
