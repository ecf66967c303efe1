"""Whether the checkpoint that a run would resume from is there, is complete and belongs to that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.place import unless_elsewhere
from verl_mas.checks.refusals import Problem, user_code
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.run_folder.checkpoints import POINTER, Checkpoint, choices, folder_of_step, step_of, to_resume
from verl_mas.run_folder.lock import check_lock
from verl_mas.trainer.adapter_identity import other_adapters
from verl_mas.trainer.checkpoint import auto_resumes, left_out, other_policies, other_run, run_identity, saved_policies
from verl_mas.trainer.running import running_state


def check_checkpoint(run: Run) -> Iterator[Problem]:
    """Those of a run without a team are verl's own."""
    trainer = run.config.trainer
    folder = Path(str(trainer.default_local_dir))
    if not trainer.default_local_dir or "\0" in str(folder):
        return  # Refused by check_folders.
    yield from check_lock(run.config)
    given = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
    if given and str(given).endswith("/"):
        yield ConfigError(
            f"trainer.resume_from_path={given}",
            rule="verl reads the step from what follows global_step_",
            fix=f"set trainer.resume_from_path={str(given).rstrip('/')}",
        )
    elif trainer.resume_from_path and not given:
        yield ConfigWarning(
            f"trainer.resume_from_path={trainer.resume_from_path} with trainer.resume_mode={trainer.resume_mode}",
            reason="it is read with trainer.resume_mode=resume_path only",
            fix="set trainer.resume_mode=resume_path, or remove trainer.resume_from_path",
        )
    elif run.mode is None:
        yield from _of_verl(run.config, folder)
    else:
        try:
            checkpoint = to_resume(run.config)
        except ConfigError as error:
            yield unless_elsewhere(run.config, error) if given and not Path(given).exists() else error
        else:
            yield from _of_this_team(run, checkpoint) if checkpoint else ()


def _of_this_team(run: Run, checkpoint: Checkpoint) -> Iterator[Problem]:
    lacking = list(other_policies(checkpoint.folder, saved_policies(run.mas)))
    yield from lacking
    with user_code(run.mas.workflow.check_timeout_s):
        identity, running = run_identity(run), running_state(run)
    if not lacking:
        yield from other_adapters(checkpoint, identity)
        yield from other_run(checkpoint, identity) if auto_resumes(run.config) else ()
    if run.mode:
        yield from left_out(checkpoint, run.mode.asynchronous)
    if running:
        yield from running.problems(checkpoint.folder)


def _of_verl(config: DictConfig, folder: Path) -> Iterator[Problem]:
    """verl starts from step 0 where the pointer names no folder, and fails at the start for the rest."""
    if config.trainer.resume_mode == "resume_path":
        path = Path(str(config.trainer.resume_from_path))
        if step_of(path) is None or not path.is_dir():
            error = ConfigError(
                f"trainer.resume_mode=resume_path with trainer.resume_from_path={config.trainer.resume_from_path}",
                rule="it is the folder of a checkpoint, global_step_<step>",
                fix=choices(folder),
            )
            yield unless_elsewhere(config, error)
    elif config.trainer.resume_mode == "auto" and (pointer := folder / POINTER).exists():
        text = pointer.read_text(errors="replace").strip()
        if not (text.isdecimal() and folder_of_step(folder, int(text)).is_dir()):
            found = ", ".join(sorted(path.name for path in folder.glob("global_step_*"))) or "no checkpoint"
            yield ConfigError(
                f"{pointer} holds {text[:40]!r}, and {found} is there",
                rule="it holds the step of the latest checkpoint",
                fix=f"write the step of one of them into {pointer}, or set trainer.resume_mode=disable",
            )
