"""Small helpers that several packages need."""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

# A mapping by field name with values of every kind: a dataset row, sampling parameters, a row's fields.
Fields: TypeAlias = dict[str, Any]


@cache
def installed_version(distribution: str) -> str | None:
    """Read a version from the distribution's metadata, without importing anything; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def read_yaml(file: Path) -> Fields:
    """Read a mapping from a YAML file. If PyYAML was built with libyaml, use libyaml, which is ten times faster."""
    import yaml

    read: Fields = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return read


def cores() -> int:
    """Count the CPU cores that this process may use. If it is bound to some cores, only these count. On macOS,
    processes cannot be bound, so all cores count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
