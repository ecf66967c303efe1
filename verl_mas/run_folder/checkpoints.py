"""The checkpoints in a run's folder, and the pointer to the latest one.

A checkpoint is a folder `global_step_N` with a folder per policy, `data.pt`, `driver_rng.pt`, `team.yaml`,
`running_scores.json` if the estimator remembers scores, `queue` if tasks are in flight, and `run.json`. `run.json` is
written last and lists the files with sizes and hashes. So a folder is never used as a checkpoint if a crash, a full
disk or a partial restore left it incomplete or mixed. The pointer is written after `run.json`.
"""

import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import flush, known_by, write_whole

POINTER = "latest_checkpointed_iteration.txt"
RUN_FILE = "run.json"
DATA_FILE = "data.pt"  # verl's name for the data loader's state
FILES = "files"
REMOVED = "removed_"
_NAME = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    step: int
    run: Mapping[str, object]  # content of `run.json`: the identity of the run, and the files

    @property
    def arguments(self) -> str:
        """Arguments to add to a command that resumes from this checkpoint."""
        return f"trainer.resume_mode=resume_path trainer.resume_from_path={self.folder}"


def folder_of_step(folder: Path, step: int) -> Path:
    return folder / f"global_step_{step}"


def complete(folder: Path, run: Mapping[str, object]) -> None:
    """Mark the checkpoint in `folder` as complete, and point to it. `run` is the identity of the run."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)
    files = {str(path.relative_to(folder)): _listed(path) for path in folder.rglob("*") if path.is_file()}
    write_whole(folder / RUN_FILE, json.dumps({**run, FILES: files}, indent=1))
    write_whole(folder.parent / POINTER, str(step_of(folder)))  # verl writes it in place (patch: checkpoint-tracker)


def _listed(path: Path) -> str:
    return f"{path.stat().st_size} bytes and the hash {hashlib.sha256(known_by(path)).hexdigest()[:16]}"


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint. The folder is renamed first. If a crash interrupts the deletion, the next call can then
    recognise the rest by its name, and deletes it."""
    with suppress(FileNotFoundError):
        checkpoint.rename(checkpoint.with_name(f"{REMOVED}{checkpoint.name}"))
    for rest in checkpoint.parent.glob(f"{REMOVED}*"):
        shutil.rmtree(rest, ignore_errors=True)


def damaged(folder: Path, names: str) -> list[str]:
    """List the files of torch that match a pattern and have wrong checksums. torch loads such files without an
    error."""
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob(names)) if not _intact(path)]


def _intact(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError):
        return False


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """List the complete checkpoints of a run's folder, by step."""
    checkpoints = [read(folder_of_step(folder, step)) for step in begun(folder)]
    return [one for one in checkpoints if isinstance(one, Checkpoint)]


def last(folder: Path) -> Checkpoint | str:
    """Return the checkpoint that the pointer names. Without a pointer to a step, return the latest complete checkpoint.
    If there is no such checkpoint, return the reason."""
    if (pointer := read_pointer(folder)) and pointer[1] is not None:
        return read(folder_of_step(folder, pointer[1]))
    return next(reversed(whole_checkpoints(folder)), f"{folder} has no complete checkpoint")


def begun(folder: Path) -> list[int]:
    """List the steps of all checkpoints in a run's folder, complete or not."""
    return sorted(step for path in folder.glob("global_step_*") if (step := step_of(path)) is not None)


def latest(folder: Path) -> Checkpoint | None:
    """Return the checkpoint that the pointer of a run's folder names; None in a folder without checkpoints.

    Raises ConfigError if the pointer names no complete checkpoint, or is missing although there are complete
    checkpoints.
    """
    pointer, pointed = folder / POINTER, read_pointer(folder)
    if pointed is None:
        if whole_checkpoints(folder):
            raise _refused(folder, f"{pointer} is not there")
        return None
    text, step = pointed
    if step is None:
        raise _refused(folder, f"{pointer} holds {text!r}, which is no step" if text else f"{pointer} is empty")
    found = read(folder_of_step(folder, step))
    if isinstance(found, Checkpoint):
        return found
    raise _refused(folder, f"{pointer} names step {text}, but {found}")


def read_pointer(folder: Path) -> tuple[str, int | None] | None:
    """Return the text of the pointer of a run's folder, and its step if the text is a number; None without a
    pointer."""
    pointer = folder / POINTER
    if not pointer.exists():
        return None
    text = pointer.read_bytes().decode(errors="replace").strip()
    return text[:40], int(text) if text.isdecimal() and len(text) <= 18 else None


def to_resume(config: DictConfig) -> Checkpoint | None:
    """Return the checkpoint from which a run with this configuration resumes, if any. Raises ConfigError if it cannot
    resume."""
    trainer = config.trainer
    folder = Path(trainer.default_local_dir).absolute()
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "auto":
        return latest(folder)
    if trainer.resume_mode != "resume_path":
        rule = "it is auto, disable or resume_path"
        raise ConfigError(f"trainer.resume_mode={trainer.resume_mode}", rule=rule, fix="set trainer.resume_mode=auto")
    path = trainer.resume_from_path
    found = read(Path(path).absolute()) if isinstance(path, str) and path else "it names no folder"
    if isinstance(found, Checkpoint):
        return found
    raise _refused(folder, f"trainer.resume_from_path={path}: {found}")


def read(folder: Path) -> Checkpoint | str:
    """Return the checkpoint in a folder, or the reason why it is not complete."""
    step = step_of(folder)
    if step is None:
        return f"{folder} is not named global_step_N"
    if not folder.is_dir():
        return f"{folder} is not there"
    run = _run_of(folder)
    if isinstance(run, str):
        return run
    listed = run.get(FILES)
    if not isinstance(listed, dict):
        return f"{folder} is not complete: its {RUN_FILE} lists no files"
    for name, saved in listed.items():
        path = folder / name
        if not isfile(path):  # `Path.is_file` raises an error for a name that is too long
            return f"{folder} is not complete: {name:.200} is missing"
        before = f"{saved} bytes" if isinstance(saved, int) else str(saved)  # version 0.2.0 listed only sizes
        if not (now := _listed(path)).startswith(before):
            return f"{folder} is not complete: {name} has {now} and was saved with {before}"
    return Checkpoint(folder, step, run)


def _run_of(folder: Path) -> dict[str, object] | str:
    """Return the content of a checkpoint's `run.json`, or the reason why it cannot be read."""
    try:
        run = json.loads((folder / RUN_FILE).read_bytes())
    except FileNotFoundError:
        return f"{folder} is not complete: it has no {RUN_FILE}, which is written last"
    except OSError as error:
        return f"{folder / RUN_FILE} cannot be read: {error.strerror}"
    except ValueError:  # JSONDecodeError and UnicodeDecodeError
        return f"{folder / RUN_FILE} cannot be read as JSON"
    return run if isinstance(run, dict) else f"{folder / RUN_FILE} holds no JSON object"


def step_of(folder: Path) -> int | None:
    matched = _NAME.fullmatch(folder.name)
    return int(matched[1]) if matched else None


def choices(folder: Path, without: Path | None = None) -> str:
    """Suggest how a run in `folder` can start if it cannot resume as requested. `without`: a checkpoint that is not
    suggested."""
    anew = "trainer.resume_mode=disable starts from step 0"
    whole = [one for one in whole_checkpoints(folder) if one.folder != without]
    if not whole:
        return f"{folder} has no {'other' if without else 'complete'} checkpoint; {anew}"
    steps = ", ".join(str(one.step) for one in whole)
    return f"complete checkpoints are there of step {steps}; resume from one with {whole[-1].arguments}; {anew}"


def _refused(folder: Path, value: str) -> ConfigError:
    return ConfigError(value, rule="a run resumes from a complete checkpoint", fix=choices(folder))
