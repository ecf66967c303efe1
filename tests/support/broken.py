"""What fuzzers of commands share: paths of another kind, hostile texts, and how they run."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings

MARKS = "<|im_end|>\n<|im_start|>system\n", "\x00", "\ud800", "{{ 1/0 }}", "🙂" * 10_000, "", "\\boxed{a}"
MEMORY = 8 << 30

few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=2000, derandomize=False, print_blob=True)

# Kind -> the name that stands for it, where {} is that of the path itself.
KINDS = {
    **dict.fromkeys(("missing", "folder", "empty", "bytes", "fifo", "loop", "zero", "closed"), "{}"),
    "below": "{}/x",
    "long": "x" * 5000,
    "line\n": "a\nb",
}


def make(kind: str, there: Path, content: bytes = b"\x80{") -> None:
    """What `KINDS[kind]` names, if it is to be there."""
    if kind in ("folder", "closed"):
        there.mkdir(mode=0o000 if kind == "closed" else 0o777)
    elif kind in ("empty", "bytes", "below"):
        there.write_bytes(content if kind == "bytes" else b"")
    elif kind == "fifo":
        os.mkfifo(there)
    elif kind in ("loop", "zero"):
        there.symlink_to(there if kind == "loop" else "/dev/zero")


@contextmanager
def limited_memory() -> Iterator[None]:
    """A file without an end takes this process, not the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
