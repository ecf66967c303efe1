"""The CPU cores that this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Of a process that is bound to some cores, these; macOS binds none."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
