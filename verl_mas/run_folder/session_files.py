"""The files of session records, by step, attempt and worker.

<dir>/<train|val>/<step>-<attempt>-<worker>.jsonl     sessions as they end, a line each
<dir>/<train|val>/<step>-<attempt>-<worker>.parquet   the same, compressed when a step has ended
<dir>/train/<step>-<attempt>-advantages.jsonl.zst     {key: advantage}, from the trainer
<dir>/images/<hash>.png                               the images of messages, each once

A row of a Parquet file has a session's record as a line of JSON, and its list entry, so a reader lists the sessions
without reading the records. Every page of the file has a checksum. The file is written under another name first, so a
process that is killed leaves a complete file or none.

The step in a file name is the step in which the sessions started. In the asynchronous modes, the trainer trains on
them in a later step.

A run that resumes is a new attempt. It repeats steps under the same keys, so records and advantages of different
attempts are not joined. Sessions that a checkpoint of an asynchronous mode kept are an exception: a later attempt
trains on them, so it has their advantages but not their records.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow

from verl_mas.errors import DataError
from verl_mas.run_folder.disk import append, whole_file, writing
from verl_mas.run_folder.records import LISTED, Listed, plain

TRAIN, VAL = PARTITIONS = ("train", "val")
FOLDER = "trajectories"  # the folder of all records in the folder of the run, unless mas.trajectories.dir is set
IMAGES = "images"
ADVANTAGES = "advantages"
PLAIN, COMPRESSED, TABLE = ".jsonl", ".jsonl.zst", ".parquet"
CHUNK = 2**16  # bytes to read at once
LEVEL = 9  # compression level of zstd
SESSION, RECORD = "session", "record"  # the columns of a table
# Switch off options of Parquet that would only make small files larger.
SMALL = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class SessionFile:
    step: int
    attempt: str
    worker: str
    path: Path
    size: int

    @property
    def of_advantages(self) -> bool:
        return self.worker == ADVANTAGES


def new_attempt(directory: str | Path) -> str:
    """Make a name that sorts after the attempts in a folder, even if the clock was set back."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
    last = max((file.attempt for part in PARTITIONS for file in files_of(Path(directory) / part)), default="")
    return now if now > last else f"{last}+"


def partition_of(validate: bool) -> str:
    return VAL if validate else TRAIN


def file_of(directory: str | Path, validate: bool, step: int, attempt: str, worker: str, suffix: str = PLAIN) -> Path:
    """Return the file for a session's record. Tasks that are dispatched before the first step have negative steps;
    their records are filed under step 0."""
    return Path(directory) / partition_of(validate) / f"{max(step, 0):06d}-{attempt}-{worker}{suffix}"


def files_of(folder: Path) -> list[SessionFile]:
    """List the files of a partition by step, attempt and worker. Other files are ignored."""
    files = []
    for path in {current(path) for path in folder.glob("*")}:
        path = path if path.exists() else current(path)  # a worker may have compressed the file since
        name, *suffixes = path.name.partition(".")
        step, _, rest = name.partition("-")
        attempt, _, worker = rest.rpartition("-")
        if step.isdecimal() and "".join(suffixes) in (PLAIN, COMPRESSED, TABLE):
            with suppress(FileNotFoundError):
                files.append(SessionFile(int(step), attempt, worker, path, path.stat().st_size))
    return sorted(files)


def current(path: Path) -> Path:
    """Return the compressed file of a plain file if it exists, else the path itself. A worker writes the compressed
    file, and then deletes the plain one."""
    compressed = path.with_suffix(TABLE)
    return compressed if path.suffix == PLAIN and compressed.exists() else path


def compress(path: Path, entries: Sequence[Listed]) -> int:
    """Replace a plain file, whose sessions are `entries`, by a compressed one; return the change in bytes."""
    content = path.read_bytes()
    size = write_table(path.with_suffix(TABLE), content.splitlines(keepends=True), entries)
    path.unlink()
    return size - len(content)


def write_advantages(
    directory: str | Path, step: int, attempt: str, advantages: Mapping[str, float], compressed: bool = True
) -> None:
    """Write advantages by row key; called by the trainer. Raises DiskError when the disk is full."""
    path = file_of(directory, False, step, attempt, ADVANTAGES, COMPRESSED if compressed else PLAIN)
    # Write each number with the fewest digits that give the same float32, because the trainer computes in float32.
    short = {key: float(str(np.float32(value))) for key, value in advantages.items()}
    line = json.dumps(short).encode() + b"\n"
    with recording(path):
        append(path, pyarrow.compress(line, codec="zstd", asbytes=True) if compressed else line)


def recording(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError of a write of records into a DiskError, which ends the run."""
    fix = "make room, or set mas.trajectories.dir to another disk or mas.trajectories.enabled=false"
    return writing(path, rule="every session is recorded, so a run that cannot do so ends", fix=fix)


def folder_of_sessions(directory: str | Path, partition: str) -> Path:
    """Return the folder of a partition. Raises DataError if it does not exist."""
    folder = Path(directory) / partition
    if not folder.is_dir():
        rule = "a run writes its sessions to <trainer.default_local_dir>/trajectories, or to mas.trajectories.dir"
        raise DataError(f"{folder} is not a folder", rule=rule, fix="give that folder")
    return folder


def write_table(path: Path, lines: Sequence[bytes], entries: Sequence[Listed]) -> int:
    """Write the records of a step; return the size of the file."""
    import pyarrow.parquet

    listed = [json.dumps(asdict(entry), default=plain) for entry in entries]
    table = pyarrow.table({SESSION: listed, RECORD: lines})
    with whole_file(path) as new:
        pyarrow.parquet.write_table(
            table, new, compression="zstd", compression_level=LEVEL, write_page_checksum=True, **SMALL
        )
    return path.stat().st_size


def read_entries(path: Path) -> list[Listed]:
    """List the sessions of a file. Raises OSError or ValueError if it is damaged.

    Fields that this version does not know are ignored. Fields that are missing in the file get their defaults.
    """
    rows = map(json.loads, _column(path, SESSION))
    return [Listed(**{name: row[name] for name in LISTED if name in row}) for row in rows]


def read_lines(path: Path) -> list[bytes]:
    """Read the lines of a file of records or advantages, plain or compressed. Raises OSError or ValueError if a Parquet
    file is damaged; from another file, the lines before the damage are returned, with a warning."""
    if path.suffix == TABLE:
        return _column(path, RECORD)
    content = bytearray()
    with pyarrow.input_stream(str(path)) as file:
        try:
            while part := file.read(CHUNK):
                content += part
        except OSError as error:
            logger.warning(
                "%s is damaged, and the lines from number %d are skipped: %s", path, content.count(b"\n") + 1, error
            )
            del content[content.rfind(b"\n") + 1 :]
    return bytes(content).splitlines(keepends=True)


def _column(path: Path, name: str) -> list[bytes]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        values: list[bytes] = file.read([name])[name].to_pylist()
    return values
