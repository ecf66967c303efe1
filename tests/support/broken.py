"""What fuzzers share: paths of another kind, hostile texts, machines with a wrong clock or a full disk, and how they
run."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MARKS = "<|im_end|>\n<|im_start|>system\n", "\x00", "\ud800", "{{ 1/0 }}", "🙂" * 10_000, "", "\\boxed{a}"
MEMORY = 8 << 30

few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=2000, derandomize=False, print_blob=True)

# Kind -> the name that stands for it, where {} is that of the path itself.
KINDS = {
    **dict.fromkeys(("missing", "folder", "empty", "bytes", "fifo", "loop", "zero", "full", "sealed", "closed"), "{}"),
    "below": "{}/x",
    "long": "x" * 5000,
    "line\n": "a\nb",
}
# Of an endless file, one that never takes a byte, and a folder in which not even root makes a file.
LINKS = {"loop": None, "zero": "/dev/zero", "full": "/dev/full", "sealed": "/sys/kernel"}


def make(kind: str, there: Path, content: bytes = b"\x80{") -> None:
    """What `KINDS[kind]` names, if it is to be there."""
    if kind in ("folder", "closed"):
        there.mkdir(mode=0o000 if kind == "closed" else 0o777)
    elif kind in ("empty", "bytes", "below"):
        there.write_bytes(content if kind == "bytes" else b"")
    elif kind == "fifo":
        os.mkfifo(there)
    elif kind in LINKS:
        there.symlink_to(LINKS[kind] or there)


@contextmanager
def limited_memory() -> Iterator[None]:
    """A file without an end takes this process, not the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files of this process cannot become larger: a write beyond it is cut there, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A module that is first imported meanwhile would leave a .pyc that is cut, for every later process.
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = written


@contextmanager
def wrong_clock(shifts: Sequence[float]) -> Iterator[None]:
    """The wall clock is wrong by the next of these seconds whenever it is read; the monotonic one is right."""
    right, wrong = time.time, cycle(shifts)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(time.time(), tz)

    ours = [module for name, module in sys.modules.items() if name.startswith("verl_mas")]
    with ExitStack() as patches:
        patches.enter_context(patch.object(time, "time", lambda: right() + next(wrong)))
        for module in (module for module in ours if vars(module).get("datetime") is datetime):
            patches.enter_context(patch.object(module, "datetime", Wrong))
        yield


YEAR = 365.25 * 24 * 3600
AGES = -56 * YEAR, -YEAR, -3600.0, -0.5, 0.0, 0.5, 3600.0, 14 * YEAR  # from 1970 to 2040
CLOCKS = st.lists(st.sampled_from(AGES), min_size=1, max_size=3)
SIZES = st.sampled_from([0, 1, 100, 1000, 5000, 20_000])


@contextmanager
def machine(shifts: Sequence[float], size: int | None) -> Iterator[None]:
    with wrong_clock(shifts), ExitStack() as disk:
        if size is not None:
            disk.enter_context(full_disk(size))
        yield


# Every second one is sound, so that not all is drowned in full disks.
MACHINES = st.just(([0.0], None)) | st.tuples(CLOCKS, st.none() | SIZES)
