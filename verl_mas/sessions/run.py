"""The folder of a run, which is `trainer.default_local_dir`, for everything that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.errors import DataError
from verl_mas.run_folder import about, metrics
from verl_mas.run_folder.checkpoints import POINTER
from verl_mas.run_folder.metrics import Step, read_steps
from verl_mas.trainer import timeline

TRAJECTORIES = "trajectories"
# One of these makes a folder the folder of a run.
MARKS = (about.FILE, metrics.FILE, timeline.FILE, TRAJECTORIES, POINTER)


@dataclass(frozen=True)
class RunFolder:
    """A run that trains, has ended or was stopped. Nothing but `run.yaml` is read before it is asked for."""

    folder: Path
    config: DictConfig | None = None
    """The resolved configuration of its last start; None of an earlier version."""

    about: Mapping[str, object] = field(default_factory=dict)
    """The rest of `run.yaml`."""

    @property
    def name(self) -> str:
        """The name of the folder, or of the one above it where it is called checkpoints."""
        return self.folder.parent.name if self.folder.name == "checkpoints" else self.folder.name

    def steps(self) -> list[Step]:
        """The logged metrics by step; none where no file of metrics is found."""
        found = self.metrics
        return [] if found is None else read_steps(found)

    @property
    def metrics(self) -> Path | None:
        """The file of the metrics: the run's own, else one of verl's `file` logger where such files usually are."""
        return next((path for path in self.places if path.is_file()), None)

    @property
    def places(self) -> tuple[Path, ...]:
        """Where metrics are looked for."""
        own = self.folder / metrics.FILE
        if self.about:
            return (own,)
        # By default checkpoints are in checkpoints/<project>/<experiment>, and verl's file is
        # <project>/<experiment>.jsonl.
        project, experiment = self.folder.parent.name, self.folder.name
        by_default = self.folder.parent.parent.parent / project / f"{experiment}.jsonl"
        return own, by_default, self.folder.parent / metrics.FILE

    @property
    def trajectories(self) -> Path | None:
        """The folder of the session records, if there are any."""
        given = OmegaConf.select(self.config, "mas.trajectories.dir") if self.config is not None else None
        found = Path(given) if given else self.folder / TRAJECTORIES
        return found if found.is_dir() else None


def open_run(path: str | Path) -> RunFolder:
    """Raises DataError for a folder that is not of a run. Earlier versions wrote no `run.yaml`."""
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise DataError(
            f"{path} is not a folder" if folder.exists() else f"{path} is not there",
            rule="a run is read from its folder",
            fix="give trainer.default_local_dir of the run",
        )
    if not _is_run(folder):
        raise DataError(f"{path} is not the folder of a run", rule=f"it has {' or '.join(MARKS)}", fix=_nearby(folder))
    found = dict(about.read_about(folder))
    config = found.pop(about.CONFIG, None)
    return RunFolder(folder, OmegaConf.create(config) if isinstance(config, dict) else None, found)


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)


def _nearby(folder: Path) -> str:
    """The folders of runs in this one, or above it."""
    inside = sorted(str(child) for child in folder.iterdir() if child.is_dir() and _is_run(child))
    if _is_run(folder.parent):
        inside = [str(folder.parent)]
    if not inside:
        return "give trainer.default_local_dir of a run"
    more = f", or one of {len(inside) - 1} others beside it" if len(inside) > 1 else ""
    return f"give {inside[0]}{more}"
