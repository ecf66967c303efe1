"""The folder of a run (`trainer.default_local_dir`), as its readers see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from omegaconf import DictConfig, OmegaConf

from verl_mas.errors import DataError
from verl_mas.run_folder import about, worker_log
from verl_mas.run_folder.checkpoints import POINTER
from verl_mas.run_folder.metrics import file as metrics
from verl_mas.run_folder.metrics.file import Step, read_steps
from verl_mas.run_folder.session_files import FOLDER
from verl_mas.trainer import timeline
from verl_mas.workflow.agents import role_of

Settings: TypeAlias = Mapping[str, object]
MARKS = (about.FILE, metrics.FILE, timeline.FILE, FOLDER, POINTER)  # a run's folder has at least one of these


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, whether the run is training or has ended. `run.yaml` is read when the folder is opened, and
    other files are read when they are needed."""

    folder: Path
    # The resolved configuration of the last start; None if the folder has no `run.yaml`, such as after an evaluation.
    config: DictConfig | None = None
    about: Mapping[str, object] = field(default_factory=dict)  # the rest of `run.yaml`

    @property
    def name(self) -> str:
        """The name of the folder, or of its parent if the folder is called checkpoints."""
        return self.folder.parent.name if self.folder.name == "checkpoints" else self.folder.name

    def steps(self) -> list[Step]:
        """The logged metrics by step; empty if the file is missing."""
        return read_steps(self.metrics)

    @property
    def when_empty(self) -> str:
        """The advice for a run that has not logged a step yet."""
        ended = (about.attempts(self.about) or [{}])[-1].get(about.ENDED)
        if not isinstance(ended, dict):
            return "wait for its first step"
        return f"read {self.folder / worker_log.FILE}: it ended before a step was logged, by {ended.get('by')}"

    @property
    def metrics(self) -> Path:
        return self.folder / metrics.FILE

    @property
    def trajectories(self) -> Path | None:
        """The folder of the session records, if it exists."""
        given = OmegaConf.select(self.config, "mas.trajectories.dir") if self.config is not None else None
        # A relative path refers to the folder in which the run was started.
        started = [start.get("folder") for start in about.attempts(self.about)][-1:]
        found = Path(*map(str, filter(None, started)), given) if given else self.folder / FOLDER
        return found if found.is_dir() else None

    @property
    def agents(self) -> dict[str, Settings]:
        """The agents in the order of the configuration."""
        return self._of_mas("agents")

    @property
    def policies(self) -> dict[str, Settings]:
        return self._of_mas("policies")

    def agent(self, name: str) -> Settings:
        """The configured settings of an agent, or of its role."""
        return self.agents.get(name) or self.agents.get(role_of(name)) or {}

    def _of_mas(self, section: str) -> dict[str, Settings]:
        found = None if self.config is None else OmegaConf.select(self.config, f"mas.{section}")
        named = OmegaConf.to_container(found) if OmegaConf.is_dict(found) else {}
        assert isinstance(named, dict)
        return {str(name): settings or {} for name, settings in named.items()}


def open_run(path: str | Path) -> RunFolder:
    """Open the folder of a run. Raises DataError for any other folder."""
    folder = Path(path).absolute()
    if not folder.is_dir():
        value = f"{path} is not a folder" if folder.exists() else f"{path} is not there"
        raise DataError(value, rule="a run is read from its folder", fix="give trainer.default_local_dir of the run")
    if not is_run(folder):
        inside = sorted(str(child) for child in folder.iterdir() if child.is_dir() and is_run(child))
        near = [str(folder.parent)] if is_run(folder.parent) else inside
        fix = f"give {near[0]}" if near else "give trainer.default_local_dir of a run"
        fix += f", or one of {len(near) - 1} others beside it" if len(near) > 1 else ""
        raise DataError(f"{path} is not the folder of a run", rule=f"it has {' or '.join(MARKS)}", fix=fix)
    found = dict(about.read_about(folder))
    config = found.pop(about.CONFIG, None)
    return RunFolder(folder, OmegaConf.create(config) if isinstance(config, dict) else None, found)


def is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)
