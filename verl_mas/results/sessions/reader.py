"""Reading of session records: a cheap list of all sessions, and single records."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from verl_mas.errors import DataError
from verl_mas.run_folder import session_files
from verl_mas.run_folder.records import Listed, Record, listed, unpacked
from verl_mas.run_folder.session_files import TABLE, SessionFile, current, read_entries, read_lines

Attempts: TypeAlias = Literal["last", "all"]
# Size of each cache (lines by file, advantages by step). It is small because sessions are mostly read in order.
KEPT = 4
Advantages: TypeAlias = Mapping[str, float]  # by key of the act
# Errors for a line that is not a record, and for a file that is damaged or gone.
NOT_A_RECORD = (ValueError, KeyError, TypeError, AttributeError, IndexError)
DAMAGED = (OSError, *NOT_A_RECORD)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionEntry(Listed):
    """A session in the list, with the place of its record on disk."""

    attempt: str | None = None
    # Whether all agents have equal rewards in all sessions of the group; None if the group has no other session.
    uniform: bool | None = None
    file: Path = Path()
    line: int = 0  # the index of its line in the file


def read_sessions(
    directory: str | Path, validate: bool = False, step: int | None = None, attempts: Attempts = "last"
) -> Iterator[Record]:
    """Yield sessions in the order of their steps. Their acts have advantages if the trainer has written them.

    A resumed run may have repeated steps. For each step, only the last attempt is read, together with sessions of
    earlier attempts if the last attempt trained on them. `attempts="all"` reads every attempt, in order. Each session
    names its `attempt`.
    Damaged records are skipped with a warning.
    """
    partition = session_files.partition_of(validate)
    session_files.folder_of_sessions(directory, partition)
    yield from SessionIndex(directory, attempts=attempts, partitions=(partition,), step=step).records()


class SessionIndex:
    """The sessions of a run on disk: `entries` lists them, and `read(entry)` returns a record.

    `entries` are sorted by partition, step, attempt and file. Compressed files are listed without reading their
    records. While the run trains, `refresh` adds new sessions.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        attempts: Attempts = "last",
        partitions: Sequence[str] = session_files.PARTITIONS,
        step: int | None = None,
    ):
        if attempts not in ("last", "all"):
            raise DataError(f"attempts={attempts!r}", rule="it is last or all", fix='give attempts="last"')
        self.directory = Path(directory)
        if not any((self.directory / name).is_dir() for name in session_files.PARTITIONS):
            session_files.folder_of_sessions(directory, session_files.TRAIN)
        self._attempts, self._partitions, self._step = attempts, partitions, step
        self.entries: list[SessionEntry] = []
        # The number of sessions without a record: they were not selected for recording, or there was no space on disk.
        self.left_out = 0
        # By partition and step: the files, and the entries of their sessions.
        self.files: dict[tuple[str, int], list[SessionFile]] = {}
        self.by_step: dict[tuple[str, int], list[SessionEntry]] = {}
        self._listed: dict[SessionFile, list[SessionEntry]] = {}
        self._advantages = lru_cache(KEPT)(lambda partition, step: self._selected(partition, step)[1])
        self._lines = lru_cache(KEPT)(read_lines)
        self.refresh()

    def refresh(self) -> bool:
        """List the sessions again, reading only files that have changed. Return whether any file has changed."""
        before, self.files = self.files, defaultdict(list)
        self._advantages.cache_clear()
        self._lines.cache_clear()
        for partition in self._partitions:
            for file in session_files.files_of(self.directory / partition):
                if self._step is None or self._step == file.step:
                    self.files[partition, file.step].append(file)
        sessions = [file for file in chain(*self.files.values()) if not file.of_advantages]
        known = self._listed
        self._listed = {file: known[file] if file in known else entries_of(file) for file in sessions}
        listed = {key: self._entries(*key) for key in self.files}
        self.by_step = {key: [entry for entry in of_step if not entry.left_out] for key, of_step in listed.items()}
        self.entries = [*chain(*self.by_step.values())]
        self.left_out = sum(map(len, listed.values())) - len(self.entries)
        return before != self.files

    def _entries(self, partition: str, step: int) -> list[SessionEntry]:
        by_attempt = self._by_attempt(partition, step)
        # With a single attempt, all its sessions are listed, so advantages need not be read yet.
        several = len(by_attempt) > 1
        return with_uniform(self._selected(partition, step)[0] if several else chain(*by_attempt.values()))

    def read(self, entry: SessionEntry) -> Record:
        """Return the record of a session. Raises DataError if it is damaged."""
        path = current(entry.file)
        try:
            record = unpacked(self._lines(path)[entry.line])
        except DAMAGED as error:
            if current(entry.file) != path:  # a worker has compressed the file in the meantime
                return self.read(entry)
            rule = "a record is where it was listed"
            fix = "copy the file again from where it was written, and list the sessions again"
            raise DataError(f"{path} is damaged or gone: {error}", rule=rule, fix=fix) from error
        record["attempt"], record["uniform"] = entry.attempt, entry.uniform
        step = int(entry.file.name.partition("-")[0])
        known = self._advantages(entry.file.parent.name, step).get(entry.attempt, {})
        for act in record["acts"]:
            act["advantage"] = known.get(act["key"])
        return record

    def records(self, entries: Iterable[SessionEntry] | None = None) -> Iterator[Record]:
        """Yield the records of these entries, or of all entries. Damaged records are skipped with a warning."""
        damaged: Counter[str] = Counter()
        for entry in self.entries if entries is None else entries:
            try:
                yield self.read(entry)
            except DataError as error:
                damaged[str(error)] += 1
        for reason, count in damaged.items():
            logger.warning("%d %s skipped: %s", count, "session is" if count == 1 else "sessions are", reason)

    def _selected(self, partition: str, step: int) -> tuple[list[SessionEntry], Mapping[str | None, Advantages]]:
        """Return the sessions of one step, attempt by attempt, and the advantages by attempt."""
        found: list[list[SessionEntry]] = []
        joined: dict[str | None, Advantages] = {}
        later: Advantages = {}  # written by later attempts for sessions that they did not start
        for attempt, own in sorted(self._by_attempt(partition, step).items(), reverse=True):
            known = {**self._advantages_of(partition, step, attempt), **later}
            whole = self._attempts == "all" or not found
            if own and (whole or later):
                trained = {_session_of(key) for key in later}
                found.append([entry for entry in own if whole or entry.key in trained])
                joined[attempt or None] = known
                started = {entry.key for entry in own}
                later = {key: value for key, value in known.items() if _session_of(key) not in started}
            else:
                later = known
        return [entry for wanted in reversed(found) for entry in wanted], joined

    def _advantages_of(self, partition: str, step: int, attempt: str) -> Advantages:
        known: dict[str, float] = {}
        files = [file for file in self.files[partition, step] if file.of_advantages and file.attempt == attempt]
        for file in files:
            try:
                for line in read_lines(file.path):
                    known.update(json.loads(line))
            except DAMAGED as error:
                logger.warning("%s is damaged, and advantages in it are skipped: %s", file.path, error)
        return known

    def _by_attempt(self, partition: str, step: int) -> dict[str, list[SessionEntry]]:
        """Return the sessions of each attempt. The list is empty for an attempt that has written only advantages."""
        by_attempt: dict[str, list[SessionEntry]] = defaultdict(list)
        for file in self.files[partition, step]:
            by_attempt[file.attempt] += self._listed.get(file, [])
        return by_attempt


def entries_of(file: SessionFile) -> list[SessionEntry]:
    """List the sessions in a file. Damaged parts are skipped with a warning."""
    path = current(file.path)
    try:
        rows = [*(enumerate(read_entries(path)) if path.suffix == TABLE else _listed_in(path))]
        if not rows:
            logger.warning("%s is empty: the sessions that it had are gone", path)
        return [
            SessionEntry(**vars(row), attempt=file.attempt or None, file=file.path, line=line) for line, row in rows
        ]
    except DAMAGED as error:
        if current(file.path) != path:  # a worker has compressed the file in the meantime
            return entries_of(file)
        logger.warning("%s is damaged, and the sessions in it are skipped: %s", path, error)
        return []


def _listed_in(path: Path) -> Iterator[tuple[int, Listed]]:
    for number, line in enumerate(read_lines(path)):
        try:
            yield number, listed(unpacked(line))
        except NOT_A_RECORD as error:
            kind = "is damaged" if line.endswith(b"\n") else "was not finished"
            logger.warning("%s, line %d %s and is skipped: %s", path, number + 1, kind, error)


def _session_of(act: str) -> str:
    return act.rpartition("_")[0]


def with_uniform(entries: Iterable[SessionEntry]) -> list[SessionEntry]:
    """Return the entries of one step with `uniform` set: whether each agent has equal rewards throughout the group."""
    entries = list(entries)
    rewards: dict[tuple[str | None, str], list[Mapping[str, Sequence[float]]]] = defaultdict(list)
    for entry in entries:
        if entry.status != "dropped":
            rewards[entry.attempt, entry.uid].append(entry.scores or {})
    uniform = {}
    for key, group in rewards.items():
        given = {(agent, reward) for scores in group for agent, bounds in scores.items() for reward in bounds}
        if len(group) > 1:
            uniform[key] = len(given) == len({agent for agent, _ in given})
    return [replace(entry, uniform=uniform.get((entry.attempt, entry.uid))) for entry in entries]
