"""Whether a run can write its output folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.place import is_remote, not_writable, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.errors import ConfigError

# Setting -> whether it must be set. null turns the others off, or takes a folder below the first.
FOLDERS = {
    "trainer.default_local_dir": True,
    "trainer.rollout_data_dir": False,
    "trainer.validation_data_dir": False,
    "mas.trajectories.dir": False,
}


def check_folders(config: DictConfig) -> Iterator[Problem]:
    for setting, required in FOLDERS.items():
        folder = OmegaConf.select(config, setting)
        if folder is None and not required:
            continue
        if not isinstance(folder, str) or not folder.strip():
            yield ConfigError(f"{setting}={folder!r}", rule="it is the path of a folder", fix=f"set {setting}=<folder>")
        elif is_remote(folder):
            fix = f"set {setting} to a local or mounted folder; trainer.default_hdfs_dir takes a copy of checkpoints"
            yield ConfigError(f"{setting}={folder}", rule="it is a folder of this machine's file system", fix=fix)
        elif why := not_writable(Path(folder)):
            value = f"{setting}={folder!r} cannot be written: {why}"
            rule = "a run creates this folder and writes its checkpoints or records there"
            error = ConfigError(value, rule=rule, fix=f"set {setting} to a folder that this user can write")
            yield unless_elsewhere(config, error)
