"""Atomic writes of files and folders, and the error if the disk refuses a write."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from verl_mas.errors import DiskError
from verl_mas.util.text import encodable

# Errors of file systems without fsync for folders, such as mounted object stores.
NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
# Files above WHOLE bytes are identified by their last END bytes, where files written by torch have their checksums.
WHOLE, END = 1 << 26, 1 << 16


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the file at `path` when the context ends. After a crash or a power
    cut, `path` has either the whole old content or the whole new content."""
    new = path.with_name(path.name + ".new")
    try:
        yield new
        flush(new)
        new.replace(path)
        flush(path.parent)
    finally:
        new.unlink(missing_ok=True)


def known_by(path: Path) -> bytes:
    with path.open("rb") as opened:
        if (size := path.stat().st_size) > WHOLE:
            opened.seek(size - END)
        return opened.read()


def write_whole(path: Path, text: str) -> None:
    with whole_file(path) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `folder` when the context ends. A killed process may leave the new folder
    behind; the next call removes it."""
    new = folder.absolute().with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def append_line(path: Path, line: str) -> None:
    """Append a line in one write, so that a crash can cut only the last line of a file. After a cut line, the next call
    first writes a line break."""
    start = ""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            start = "" if file.read(1) == b"\n" else "\n"
    append(path, encodable(f"{start}{line}\n").encode())


def append(path: Path, left: bytes) -> None:
    """Append to a file in one write. If it raises OSError, nothing was added, and no file was created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = os.path.lexists(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        try:
            # A write is partial only if the disk is full; the next write then raises the error.
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            with suppress(OSError):  # a device cannot be truncated
                os.ftruncate(descriptor, before)
            if not there:
                path.unlink()
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path, rule: str, fix: str = "make room, or choose another --out") -> Iterator[None]:
    """Turn an OSError of a write into a DiskError."""
    try:
        yield
    except OSError as error:
        value = f"{path} cannot be written: {error.strerror or error}; {free_space(path)}"
        raise DiskError(value, rule=rule, fix=fix) from error


def recording(path: Path, what: str) -> AbstractContextManager[None]:
    """Turn an OSError of a write next to a run's checkpoints into a DiskError. `what` names the data in the message."""
    fix = "make room, or set trainer.default_local_dir to another disk"
    return writing(path, f"a run records {what} beside its checkpoints", fix)


def flush(path: Path) -> None:
    """Wait until the content of a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def size_of(folder: Path) -> int:
    """Sum the sizes of all files in a folder. Other processes may change it meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            total += status.st_size if S_ISREG(status.st_mode) else 0
    return total


def free_space(path: Path) -> str:
    """Describe the free space on the disk of a file or folder, which need not exist."""
    disk_of = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_mount())
    disk = shutil.disk_usage(disk_of)
    return f"{disk.free / 1e9:.3g} GB of {disk.total / 1e9:.3g} GB are free on the disk at {disk_of}"
