"""The sessions of one file, and those of a step that several attempts have: which of them count."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from verl_mas.run_folder.blocks import blocks_of
from verl_mas.run_folder.records import Listed, listed, read_index, unpacked
from verl_mas.run_folder.session_files import SessionFile

# By the key of an act.
Advantages: TypeAlias = Mapping[str, float]
# What is raised for a line that is not a record.
NOT_A_RECORD = (ValueError, KeyError, TypeError, AttributeError, IndexError)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionEntry(Listed):
    """A session in the list: what an index says of it, and where its record is."""

    attempt: str | None = None
    # Whether all agents have equal rewards in all sessions of its group; None: there is no other session of it.
    uniform: bool | None = None
    file: Path = Path()
    offset: int = 0  # of its block; in a plain file of its line
    line: int = 0  # in its block


def entries_of(file: SessionFile) -> list[SessionEntry]:
    """What is damaged is skipped with a warning."""
    return list(_of_blocks(file) if file.compressed else _of_lines(file))


def _of_blocks(file: SessionFile) -> Iterator[SessionEntry]:
    for block in blocks_of(file.path):
        for number, found in enumerate(read_index(block.index)):
            yield _entry(found, file, block.start, number)


def _of_lines(file: SessionFile) -> Iterator[SessionEntry]:
    start = 0
    with file.path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _entry(listed(unpacked(line)), file, start)
            except NOT_A_RECORD as error:
                kind = "is damaged" if line.endswith(b"\n") else "was not finished"
                logger.warning("%s, line %d %s and is skipped: %s", file.path, number, kind, error)
            start += len(line)


def _entry(found: Listed, file: SessionFile, offset: int, line: int = 0) -> SessionEntry:
    return SessionEntry(**vars(found), attempt=file.attempt or None, file=file.path, offset=offset, line=line)


def selected(
    by_attempt: Mapping[str, Sequence[SessionEntry]],
    advantages_of: Callable[[str], Advantages],
    everything: bool,
) -> tuple[list[SessionEntry], dict[str | None, Advantages]]:
    """The sessions of one step, attempt by attempt, and the advantages of the acts of each attempt."""
    found: list[list[SessionEntry]] = []
    joined: dict[str | None, Advantages] = {}
    later: dict[str, float] = {}  # by later attempts, of sessions that none of them started
    for attempt in sorted(by_attempt, reverse=True):
        own = by_attempt[attempt]
        known = {**advantages_of(attempt), **later}
        if own and (everything or later or not found):
            whole = everything or not found
            trained = {_session_of(key) for key in later}
            found.append([entry for entry in own if whole or entry.key in trained])
            joined[attempt or None] = known
            started = {entry.key for entry in own}
            later = {key: value for key, value in known.items() if _session_of(key) not in started}
        else:
            later = known
    return [entry for wanted in reversed(found) for entry in wanted], joined


def _session_of(act: str) -> str:
    return act.rpartition("_")[0]


def with_uniform(entries: Iterable[SessionEntry]) -> list[SessionEntry]:
    """The entries of one step, with what the others of their group say of each."""
    entries = list(entries)
    groups: dict[tuple[str | None, str], list[SessionEntry]] = defaultdict(list)
    for entry in entries:
        if entry.status != "dropped":
            groups[entry.attempt, entry.uid].append(entry)
    uniform = {key: _uniform(group) for key, group in groups.items() if len(group) > 1}
    return [replace(entry, uniform=uniform.get((entry.attempt, entry.uid))) for entry in entries]


def _uniform(group: Iterable[SessionEntry]) -> bool:
    rewards: dict[str, set[float]] = defaultdict(set)
    for entry in group:
        for agent, bounds in (entry.scores or {}).items():
            rewards[agent].update(bounds)
    return all(len(values) == 1 for values in rewards.values())
