"""The files of session records, by step, attempt and worker.

<dir>/<train|val>/<step>-<attempt>-<worker>.jsonl       sessions as they end, a line each
<dir>/<train|val>/<step>-<attempt>-<worker>.jsonl.zst   the same, compressed when a step has ended
<dir>/train/<step>-<attempt>-advantages.jsonl.zst       {key: advantage}, from the trainer
<dir>/images/<hash>.png                                 the images of messages, each once

The step is the one in which a session was started; in the asynchronous modes it is trained later.

A run that resumes is a new attempt. It repeats steps under the same keys, so what two attempts have of a session is not
joined. Sessions that a checkpoint of an asynchronous mode kept are the exception: a later attempt trains on them, and
has their advantages and no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from verl_mas.errors import DataError
from verl_mas.run_folder.blocks import append_block, blocks_of, lines_of
from verl_mas.run_folder.disk import append, writing

TRAIN, VAL = PARTITIONS = ("train", "val")
FOLDER = "trajectories"  # the folder of all records, in that of the run, unless mas.trajectories.dir names another one
IMAGES = "images"
ADVANTAGES = "advantages"
PLAIN, COMPRESSED = ".jsonl", ".jsonl.zst"


@dataclass(frozen=True, order=True)
class SessionFile:
    step: int
    attempt: str
    worker: str
    compressed: bool
    path: Path

    @property
    def of_advantages(self) -> bool:
        return self.worker == ADVANTAGES


def new_attempt(directory: str | Path) -> str:
    """A name that sorts after the attempts in a folder, even if the clock was set back."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
    last = max((file.attempt for part in PARTITIONS for file in files_of(Path(directory) / part)), default="")
    return now if now > last else f"{last}+"


def partition_of(validate: bool) -> str:
    return VAL if validate else TRAIN


def file_of(directory: str | Path, validate: bool, step: int, attempt: str, worker: str, compressed: bool) -> Path:
    """The file for a session's record. Tasks that are dispatched before the first step have negative steps; their
    records are filed under step 0."""
    name = f"{max(step, 0):06d}-{attempt}-{worker}{COMPRESSED if compressed else PLAIN}"
    return Path(directory) / partition_of(validate) / name


def files_of(folder: Path) -> list[SessionFile]:
    """The files of a partition, by step, attempt and worker. Other files are ignored."""
    files = []
    for path in folder.glob(f"*{PLAIN}*"):
        compressed = path.name.endswith(COMPRESSED)
        if not (compressed or path.name.endswith(PLAIN)):
            continue
        step, _, rest = path.name.removesuffix(COMPRESSED).removesuffix(PLAIN).partition("-")
        attempt, _, worker = rest.rpartition("-")
        if step.isdecimal():
            files.append(SessionFile(int(step), attempt, worker, compressed, path))
    return sorted(files)


def write_advantages(
    directory: str | Path, step: int, attempt: str, advantages: Mapping[str, float], compressed: bool = True
) -> None:
    """Write advantages by row key; called by the trainer. Raises DiskError when the disk is full."""
    path = file_of(directory, False, step, attempt, ADVANTAGES, compressed)
    # Write the shortest numbers that are equal in float32, in which the trainer computes.
    short = {key: float(str(np.float32(value))) for key, value in advantages.items()}
    line = json.dumps(short).encode() + b"\n"
    with recording(path):
        if compressed:
            append_block(path, line, b"")
        else:
            append(path, line)


def advantage_lines(file: SessionFile) -> Iterator[bytes]:
    """Yield the lines of a file of advantages. Raises DataError if a block of the file is damaged."""
    if not file.compressed:
        yield from file.path.read_bytes().splitlines(keepends=True)
        return
    for block in blocks_of(file.path):
        yield from lines_of(file.path, block)


def recording(path: Path) -> AbstractContextManager[None]:
    """The boundary around a write of records: an error of the disk ends the run."""
    fix = "make room, or set mas.trajectories.dir to another disk or mas.trajectories.enabled=false"
    return writing(path, rule="every session is recorded, so a run that cannot do so ends", fix=fix)


def folder_of_sessions(directory: str | Path, partition: str) -> Path:
    """The folder of a partition. Raises DataError if it does not exist."""
    folder = Path(directory) / partition
    if not folder.is_dir():
        rule = "a run writes its sessions to <trainer.default_local_dir>/trajectories, or to mas.trajectories.dir"
        raise DataError(f"{folder} is not a folder", rule=rule, fix="give that folder")
    return folder
