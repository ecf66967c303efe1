"""Whether a run can write its folder and the files of its loggers, and continue from what is there: the checkpoint that
it would resume from is complete and belongs to that run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.place import not_writable, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, user_code
from verl_mas.checks.verl.rows import SETTINGS, paths_of
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning, DataError
from verl_mas.run_folder import about, metrics, session_files
from verl_mas.run_folder.checkpoints import (
    FILES,
    POINTER,
    Checkpoint,
    choices,
    folder_of_step,
    read_pointer,
    step_of,
    to_resume,
)
from verl_mas.run_folder.lock import LOCK, check_lock
from verl_mas.run_folder.secrets import without_secrets
from verl_mas.trainer.checkpoint import differences, left_out, other_policies, run_identity, saved_policies
from verl_mas.trainer.running import running_state

OPENED = "verl opens the file when the run starts"
PARTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}  # of a policy's checkpoint, in names of files
# What a run writes into its folder -> whether it is a folder.
WRITTEN = {
    **dict.fromkeys((about.FILE, metrics.FILE, POINTER, LOCK), False),
    session_files.FOLDER: True,
}


def _of_other_kinds(folder: Path) -> Iterator[ConfigError]:
    for path in sorted(folder.iterdir()):
        is_folder = WRITTEN.get(path.name, True if step_of(path) is not None else None)
        if is_folder is not None and is_folder != path.is_dir():
            value = f"{path} is a {'file' if is_folder else 'folder'}"
            rule = f"a run writes a {'folder' if is_folder else 'file'} of this name"
            yield ConfigError(value, rule=rule, fix="move it away, or set another trainer.default_local_dir")


def check_checkpoint(run: Run) -> Iterator[Problem]:
    """Those of a run without a team are verl's own."""
    trainer = run.config.trainer
    folder = Path(str(trainer.default_local_dir))
    if not isinstance(trainer.default_local_dir, str) or not trainer.default_local_dir or "\0" in str(folder):
        return  # Refused by check_folders.
    if step_of(folder) is not None:
        value, fix = f"trainer.default_local_dir={folder}", f"set trainer.default_local_dir={folder.parent}"
        yield ConfigError(value, rule="it has the checkpoints of a run, and is none of them", fix=fix)
    if folder.is_dir():
        yield from _of_other_kinds(folder)
    records = OmegaConf.select(run.config, "mas.trajectories.dir")
    if records and any(Path(records).glob("*/*")) and not any(folder.glob("*")):
        reason = "it has those of another run, and steps have the same numbers"
        yield ConfigWarning(f"mas.trajectories.dir={records}", reason, "set another folder, or remove it")
    yield from check_lock(run.config)
    yield from combinations("resume", run.config)
    given = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
    if given and str(given).endswith("/"):
        value = f"trainer.resume_from_path={given}"
        rule = "verl reads the step from what follows global_step_"
        yield ConfigError(value, rule=rule, fix=f"set trainer.resume_from_path={str(given).rstrip('/')}")
    elif run.mode is None:
        yield from _of_verl(run.config, folder)
    else:
        try:
            checkpoint = to_resume(run.config)
        except ConfigError as error:
            yield unless_elsewhere(run.config, error) if given and not Path(given).exists() else error
        else:
            yield from _of_this_team(run, checkpoint) if checkpoint else _unfinished(run.config, folder)


def _unfinished(config: DictConfig, folder: Path) -> Iterator[ConfigWarning]:
    if config.trainer.resume_mode == "auto" and (found := sorted(path.name for path in folder.glob("global_step_*"))):
        reason = f"none is complete and there is no {POINTER}, so the run starts from step 0 and replaces them"
        yield ConfigWarning(f"{folder} has {', '.join(found)}", reason, "set another trainer.default_local_dir")


def check_logger(config: DictConfig) -> Iterator[Problem]:
    """Whether verl's loggers can write their files, and `file` replaces none that this or another run has."""
    trainer = config.trainer
    if not isinstance(trainer.default_local_dir, str):
        return  # Refused by check_folders.
    names = [trainer.logger] if isinstance(trainer.logger, str) else list(trainer.logger or ())
    given = {
        name: os.environ[name] for name in ("VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT") if name in os.environ
    }
    if metrics.LOGGER in names:
        theirs = metrics.file_of_verl(str(trainer.project_name), str(trainer.experiment_name))
        yield from _file_of_verl(config, f"trainer.logger={names} writes to {theirs}", theirs)
    for name, value in given.items() if metrics.LOGGER not in names else ():
        reason = f"trainer.logger={names} writes no such file"
        yield ConfigWarning(f"{name}={value}", reason, f"add {metrics.LOGGER} to it")
    if len(given) > 1:
        value = f"VERL_FILE_LOGGER_ROOT={given['VERL_FILE_LOGGER_ROOT']} with VERL_FILE_LOGGER_PATH"
        yield ConfigWarning(value, "the second has the whole path", "unset one of them")
    board = os.environ.get("TENSORBOARD_DIR", "tensorboard_log") or "/dev/null"  # An empty one makes no folder.
    if board.startswith("~"):
        reason = "a folder named ~ is made, as verl expands none"
        yield ConfigWarning(f"TENSORBOARD_DIR={board}", reason, "write the whole path")
    if "tensorboard" in names and (why := not_writable(Path(board))):
        value = f"trainer.logger={names} writes to {board}, which cannot be written: {why}"
        yield unless_elsewhere(config, ConfigError(value, rule=OPENED, fix="set TENSORBOARD_DIR, or leave it out"))


def _file_of_verl(config: DictConfig, value: str, file: Path) -> Iterator[Problem]:
    own, folder = Path(config.trainer.default_local_dir) / metrics.FILE, file.parent
    fix = "set VERL_FILE_LOGGER_PATH to another file, or VERL_FILE_LOGGER_ROOT to another folder"
    read = [Path(str(path)).absolute() for setting in SETTINGS for path in paths_of(config, setting)]
    if file.absolute() == own.absolute():
        rule = f"a run writes its own {metrics.FILE} there, whatever its loggers are"
        yield ConfigError(value, rule=rule, fix=f"leave out {metrics.LOGGER}, or {fix}")
    elif file.absolute() in read or (file.name == metrics.FILE and (folder / about.FILE).is_file()):
        yield ConfigError(value, rule="it replaces the file, which is of another run, or read by this one", fix=fix)
    elif file.is_dir():
        yield ConfigError(f"{value}, which is a folder", rule=OPENED, fix=fix)
    elif "VERL_FILE_LOGGER_PATH" in os.environ and not folder.is_dir():
        yield ConfigError(f"{value} in a folder that is not there", rule=OPENED, fix=f"make the folder {folder}")
    elif why := not_writable(folder):
        yield unless_elsewhere(config, ConfigError(f"{value}, which cannot be written: {why}", rule=OPENED, fix=fix))


def _of_this_team(run: Run, checkpoint: Checkpoint) -> Iterator[Problem]:
    last, until = run.config.trainer.total_training_steps, checkpoint.step
    if isinstance(last, int) and until >= last and not run.config.trainer.val_only:
        value = f"{checkpoint.folder} is of step {until}, and trainer.total_training_steps={last}"
        fix = "raise it, or set another trainer.default_local_dir, or trainer.resume_mode=disable"
        yield ConfigWarning(value, "the run has ended, and makes no step", fix)
    yield from _saved_settings(run, checkpoint)
    yield from _lacking_contents(run, checkpoint)
    lacking = list(other_policies(checkpoint.folder, saved_policies(run)))
    yield from lacking
    with user_code(run.mas.workflow.check_timeout_s):
        identity, running = run_identity(run), running_state(run)
    if not lacking:
        yield from differences(checkpoint, identity, run.config)
    if run.mode:
        yield from left_out(checkpoint, run.mode.asynchronous)
    if running:
        yield from running.problems(checkpoint.folder)


def _lacking_contents(run: Run, checkpoint: Checkpoint) -> Iterator[ConfigError]:
    listed = checkpoint.run.get(FILES)
    files = [Path(file) for file in listed if "_world_size" in file] if isinstance(listed, dict) else []
    for name in {file.parts[0] for file in files} & {*run.trained}:
        saved = {file.name.partition("_world_size")[0] for file in files if file.parts[0] == name}
        for part in run.view(name).value("actor.checkpoint.load_contents"):
            if PARTS.get(part, min(saved)) not in saved:
                value, fix = f"{checkpoint.folder} has no {part} of policy {name}", "save it, or load without it"
                yield ConfigError(value, rule="actor.checkpoint.load_contents are loaded", fix=fix)


def _saved_settings(run: Run, checkpoint: Checkpoint) -> Iterator[Problem]:
    """Settings with other values than at the last start, where a checkpoint has the state that they began."""
    try:
        before = about.read_about(checkpoint.folder.parent).get(about.CONFIG)
    except DataError:
        return  # Kept aside by the run.
    # Before the driver, Hydra's own settings are there, too, which cannot all be resolved.
    sections = OmegaConf.masked_copy(run.config, [str(name) for name in run.config if name != "hydra"])
    now = without_secrets(OmegaConf.to_container(sections, resolve=True))
    for name, (old, new) in about.changes(before, now) if isinstance(before, dict) else ():
        if name == "data.shuffle":
            rule = "the order of the data continues as it was saved"
            yield ConfigError(f"{name}={new}, and {old} before", rule=rule, fix=f"set {name}={old}")
        elif name in ("data.seed", "data.sampler.class_path"):
            reason = "the order of the data continues as it was saved"
            yield ConfigWarning(f"{name}={new}, and {old} before", reason, f"set it to {old}")
        elif ".actor.optim." in name and "optimizer" in run.config.actor_rollout_ref.actor.checkpoint.load_contents:
            reason = f"the optimiser and its schedule continue as they were saved, with {old}"
            fix = f"set it to {old}; to train on with new ones, export the checkpoint and start from its model"
            yield ConfigWarning(f"{name}={new}", reason, fix)


def _of_verl(config: DictConfig, folder: Path) -> Iterator[Problem]:
    """verl starts from step 0 where the pointer names no folder, and fails at the start for the rest."""
    if config.trainer.resume_mode == "resume_path":
        path = Path(str(config.trainer.resume_from_path))
        if step_of(path) is None or not path.is_dir():
            value = f"trainer.resume_mode=resume_path with trainer.resume_from_path={config.trainer.resume_from_path}"
            error = ConfigError(value, rule="it is the folder of a checkpoint, global_step_<step>", fix=choices(folder))
            yield unless_elsewhere(config, error)
    elif config.trainer.resume_mode == "auto" and (pointed := read_pointer(folder)):
        (text, step), pointer = pointed, folder / POINTER
        if step is None or not folder_of_step(folder, step).is_dir():
            found = ", ".join(sorted(path.name for path in folder.glob("global_step_*"))) or "no checkpoint"
            rule = "it holds the step of the latest checkpoint"
            fix = f"write the step of one of them into {pointer}, or set trainer.resume_mode=disable"
            yield ConfigError(f"{pointer} holds {text!r}, and {found} is there", rule=rule, fix=fix)
