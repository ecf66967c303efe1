"""Files that are there as a whole or not at all, and what to print when a disk refuses one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

# How file systems without fsync of a folder answer, for example mounted object stores.
NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def write_whole(path: Path, text: str) -> None:
    """A crash, or a power cut, leaves the former content or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    flush(new)
    new.replace(path)
    flush(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line in one write, so that a process that is killed can cut at most the last line of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    left = f"{line}\n".encode(errors="backslashreplace")
    try:
        before = os.fstat(descriptor).st_size
        try:
            # Only a disk that is full takes a part; the next write raises its error.
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def free_space(path: Path) -> str:
    """The space on the disk of a file or folder, also of one that could not be made."""
    disk_of = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_mount())
    disk = shutil.disk_usage(disk_of)
    return f"{disk.free / 1e9:.3g} GB of {disk.total / 1e9:.3g} GB are free on the disk at {disk_of}"
