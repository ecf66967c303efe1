"""Checks that a run can write into its folder, and that the checkpoint from which it would resume is complete and
belongs to this run."""

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.place import unless_elsewhere
from verl_mas.checks.refusals import Problem, user_code
from verl_mas.errors import ConfigError, ConfigWarning, DataError
from verl_mas.run_folder import about
from verl_mas.run_folder.checkpoints import POINTER, Checkpoint, folder_of_step, read_pointer, step_of, to_resume
from verl_mas.run_folder.lock import check_lock
from verl_mas.run_folder.secrets import without_secrets
from verl_mas.trainer.checkpoint import resume_problems, run_identity


def check_checkpoint(run: ExaminedRun) -> Iterator[Problem]:
    trainer = run.config.trainer
    folder = Path(str(trainer.default_local_dir))
    if step_of(folder) is not None:
        value, fix = f"trainer.default_local_dir={folder}", f"set trainer.default_local_dir={folder.parent}"
        yield ConfigError(value, rule="it is the folder of a run, which contains the checkpoints", fix=fix)
    yield from check_lock(run.config)
    given = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
    if run.mode is None:
        yield from _of_verl(run.config, folder)
        return
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


def _of_this_team(run: ExaminedRun, checkpoint: Checkpoint) -> Iterator[Problem]:
    last, until = run.config.trainer.total_training_steps, checkpoint.step
    if isinstance(last, int) and until >= last and not run.config.trainer.val_only:
        value = f"{checkpoint.folder} is of step {until}, and trainer.total_training_steps={last}"
        fix = "raise it, or set another trainer.default_local_dir, or trainer.resume_mode=disable"
        yield ConfigWarning(value, "the run has ended, and makes no step", fix)
    yield from _saved_settings(run, checkpoint)
    with user_code(run.mas.workflow.check_timeout_s):
        problems = list(resume_problems(checkpoint, run, run_identity(run)))
    yield from problems


def _saved_settings(run: ExaminedRun, checkpoint: Checkpoint) -> Iterator[Problem]:
    """Compare settings with those of the last start, if the saved state depends on them."""
    try:
        before = about.read_about(checkpoint.folder.parent).get(about.CONFIG)
    except DataError:
        return  # Do not report an unreadable file, because the run renames it when it starts.
    # Exclude Hydra's own settings, because some of them cannot be resolved. They are part of the configuration until
    # the driver runs.
    sections = OmegaConf.masked_copy(run.config, [str(name) for name in run.config if name != "hydra"])
    now = without_secrets(OmegaConf.to_container(sections, resolve=True))
    for name, (old, new) in about.changes(before, now) if isinstance(before, dict) else ():
        if name == "data.shuffle":
            rule = "the order of the data continues as it was saved"
            yield ConfigError(f"{name}={new}, and {old} before", rule=rule, fix=f"set {name}={old}")
        elif name == "data.seed" or name.startswith("data.train_files"):
            reason = "the order of the data continues as it was saved"
            yield ConfigWarning(f"{name}={new}, and {old} before", reason, f"set it to {old}")
        elif ".actor.optim." in name and "optimizer" in run.config.actor_rollout_ref.actor.checkpoint.load_contents:
            reason = f"the optimiser and its schedule continue as they were saved, with {old}"
            fix = f"set it to {old}; to train on with new ones, export the checkpoint and start from its model"
            yield ConfigWarning(f"{name}={new}", reason, fix)


def _of_verl(config: DictConfig, folder: Path) -> Iterator[Problem]:
    """Check that verl's pointer names an existing checkpoint, because verl would otherwise start from step 0."""
    if config.trainer.resume_mode == "auto" and (pointed := read_pointer(folder)):
        (text, step), pointer = pointed, folder / POINTER
        if step is None or not folder_of_step(folder, step).is_dir():
            found = ", ".join(sorted(path.name for path in folder.glob("global_step_*"))) or "no checkpoint"
            fix = f"write the step of one of them into {pointer}, or set trainer.resume_mode=disable"
            value = f"{pointer} holds {text!r}, and {found} is there"
            yield ConfigError(value, rule="it holds the step of the latest checkpoint", fix=fix)
