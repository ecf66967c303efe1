"""Whether a run can write its output folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.place import is_remote, not_writable, unless_elsewhere
from verl_mas.checks.refusals import Problem
from verl_mas.errors import ConfigError
from verl_mas.run_folder import metrics

# Setting -> whether it must be set. null turns the others off, or takes a folder below the first.
FOLDERS = {
    "trainer.default_local_dir": True,
    "trainer.rollout_data_dir": False,
    "trainer.validation_data_dir": False,
    "mas.trajectories.dir": False,
}


def check_logger(config: DictConfig) -> Iterator[ConfigError]:
    """Whether verl's logger `file` would write into the metrics file of a team's run."""
    trainer = config.trainer
    if not trainer.default_local_dir:
        return  # Refused by check_folders.
    names = [trainer.logger] if isinstance(trainer.logger, str) else trainer.logger or ()
    theirs = metrics.file_of_verl(str(trainer.project_name), str(trainer.experiment_name))
    if metrics.LOGGER in names and theirs.absolute() == (Path(trainer.default_local_dir) / metrics.FILE).absolute():
        yield ConfigError(
            f"trainer.logger={list(names)} writes to {theirs}",
            rule=f"a run writes its own {metrics.FILE} there, whatever its loggers are",
            fix=f"leave out {metrics.LOGGER}, or set VERL_FILE_LOGGER_PATH to another file",
        )


def check_folders(config: DictConfig) -> Iterator[Problem]:
    for setting, required in FOLDERS.items():
        folder = OmegaConf.select(config, setting)
        if folder is None and not required:
            continue
        if not isinstance(folder, str) or not folder.strip():
            yield ConfigError(f"{setting}={folder!r}", rule="it is the path of a folder", fix=f"set {setting}=<folder>")
        elif is_remote(folder):
            yield ConfigError(
                f"{setting}={folder}",
                rule="it is a folder of this machine's file system",
                fix=f"set {setting} to a local or mounted folder; trainer.default_hdfs_dir takes a copy of checkpoints",
            )
        elif why := not_writable(Path(folder)):
            error = ConfigError(
                f"{setting}={folder!r} cannot be written: {why}",
                rule="a run creates this folder and writes its checkpoints or records there",
                fix=f"set {setting} to a folder that this user can write",
            )
            yield unless_elsewhere(config, error)
