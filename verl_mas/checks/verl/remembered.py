"""What checks accepted is remembered, because asking verl again imports it, which takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from verl_mas.checks.verl.refusals import Problem
from verl_mas.verl_.sources import PACKAGES, file_of

KEPT = 1000


def accepted_before(question: object) -> bool:
    """On this installation."""
    return _remembers() and _digest(question) in _accepted()


def remember(question: object) -> None:
    if not _remembers():
        return
    file = _file()
    new = file.with_suffix(f".{os.getpid()}")
    accepted = [key for key in _accepted() if key != _digest(question)]
    with contextlib.suppress(OSError):  # without a cache each check takes longer
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"stamp": _stamp(), "accepted": [*accepted, _digest(question)][-KEPT:]}))
        new.replace(file)


def once(question: str, look: Callable[[str], Sequence[Problem]]) -> Sequence[Problem]:
    """What is found. That there is nothing is remembered."""
    if accepted_before(question):
        return []
    found = look(question)
    if not found:
        remember(question)
    return found


@cache
def _remembers() -> bool:
    """A run has verl loaded, and asks it."""
    return "verl" not in sys.modules


def _file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home, "verl-mas", "accepted_by_verl.json").expanduser()


def _accepted() -> list[str]:
    """The keys of what was accepted; none if a file of verl or of ours has changed since, or the file is broken."""
    try:
        stored = json.loads(_file().read_bytes())
        return list(stored["accepted"]) if stored["stamp"] == _stamp() else []
    except (OSError, ValueError, LookupError, TypeError):
        return []


@cache
def _stamp() -> str:
    """Of the installation: Python, the files of verl and verl-mas, other plugins of verl, the platform."""
    plugins = sorted(
        str((point.value, point.dist and point.dist.version)) for point in entry_points(group="verl.plugins")
    )
    chosen = [
        os.environ.get(name) for name in ("VERL_PLATFORM", "VERL_USE_EXTERNAL_PLUGINS", "VERL_USE_EXTERNAL_MODULES")
    ]
    return _digest([sys.version, sorted(map(str, _stats())), plugins, chosen])


def _stats() -> Iterator[tuple[str, int, int]]:
    for package in PACKAGES:
        file = file_of(package)
        for path in file.parent.rglob("*.py") if file else ():
            found = path.stat()
            yield str(path), found.st_size, found.st_mtime_ns


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()
