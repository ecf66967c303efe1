"""Session records on disk: a list of sessions that is cheap to make, and the records themselves."""

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
from verl_mas.run_folder.blocks import Block, blocks_of, lines_of
from verl_mas.run_folder.records import Listed, Record, listed, read_index, unpacked
from verl_mas.run_folder.session_files import SessionFile

Attempts: TypeAlias = Literal["last", "all"]
KEPT = 4  # blocks, and steps of advantages, kept in memory, since sessions are mostly read one after the other
Advantages: TypeAlias = Mapping[str, float]  # by the key of an act
# Errors for a line that is not a record.
NOT_A_RECORD = (ValueError, KeyError, TypeError, AttributeError, IndexError)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionEntry(Listed):
    """A session in the list: its entry in an index, and the place of its record."""

    attempt: str | None = None
    # Whether all agents have equal rewards in all sessions of the group; None if the group has no other session.
    uniform: bool | None = None
    file: Path = Path()
    block: Block | None = None  # without its index; None in a plain file
    line: int = 0  # the number of its line in the block; in a plain file, the offset where it starts


def read_sessions(
    directory: str | Path, validate: bool = False, step: int | None = None, attempts: Attempts = "last"
) -> Iterator[Record]:
    """Sessions in the order of their steps, their acts with advantages where the trainer has written them.

    A run that was resumed may have repeated steps. Of each step the last attempt is read, with the sessions of earlier
    ones that it trained on; or all attempts, in order. `attempt` in a session names its own. What is damaged is skipped
    with a warning.
    """
    partition = session_files.partition_of(validate)
    session_files.folder_of_sessions(directory, partition)
    yield from SessionIndex(directory, attempts=attempts, partitions=(partition,), step=step).records()


class SessionIndex:
    """The sessions on disk of a run: `entries` lists them, and `read(entry)` gives the record of one.

    `entries` are in the order of partition, step, attempt and file. No record is inflated to be listed; those in plain
    files are read. While the run trains, `refresh` lists what is new.
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
        # Sessions without a record: they were not sampled, or there was no space.
        self.left_out = 0
        self._listed: dict[Path, tuple[tuple[int, int], list[SessionEntry]]] = {}
        self._files: dict[tuple[str, int], list[SessionFile]] = {}
        self._advantages = lru_cache(KEPT)(lambda partition, step: self._selected(partition, step)[1])
        self._lines = lru_cache(KEPT)(lines_of)
        self.refresh()

    def refresh(self) -> bool:
        """Lists the sessions again, reading only files that have changed. Returns whether any has."""
        before = self._state()
        self._files, entries = {}, []
        self._advantages.cache_clear()
        for partition in self._partitions:
            by_step: dict[int, list[SessionFile]] = defaultdict(list)
            for file in session_files.files_of(self.directory / partition):
                if self._step is None or self._step == file.step:
                    by_step[file.step].append(file)
            for step, files in sorted(by_step.items()):
                self._files[partition, step] = files
                by_attempt = self._by_attempt(partition, step)
                # With a single attempt, advantages are not needed here, because they are read with the records.
                several = len(by_attempt) > 1
                entries += with_uniform(self._selected(partition, step)[0] if several else chain(*by_attempt.values()))
        self.entries = [entry for entry in entries if not entry.left_out]
        self.left_out = len(entries) - len(self.entries)
        return before != self._state()

    def read(self, entry: SessionEntry) -> Record:
        """Raises DataError if it is damaged."""
        try:
            line = self._line(entry)
        except FileNotFoundError:
            # The file was compressed since it was listed.
            self.refresh()
            wanted = entry.key, entry.attempt, entry.partition
            now = [one for one in self.entries if (one.key, one.attempt, one.partition) == wanted]
            if not now:
                raise _damaged(entry) from None
            line = self._line(now[0])
        try:
            record = unpacked(line)
        except NOT_A_RECORD as error:
            raise _damaged(entry) from error
        record["attempt"], record["uniform"] = entry.attempt, entry.uniform
        step = int(entry.file.name.partition("-")[0])
        known = self._advantages(entry.file.parent.name, step).get(entry.attempt, {})
        for act in record["acts"]:
            act["advantage"] = known.get(act["key"])
        return record

    def records(self, entries: Iterable[SessionEntry] | None = None) -> Iterator[Record]:
        """Those of the entries, or of all, without those that are damaged, which a warning names."""
        damaged: Counter[str] = Counter()
        for entry in self.entries if entries is None else entries:
            try:
                yield self.read(entry)
            except DataError as error:
                damaged[str(error)] += 1
        for reason, count in damaged.items():
            logger.warning("%d %s skipped: %s", count, "session is" if count == 1 else "sessions are", reason)

    def _state(self) -> object:
        """The files, and when they last changed."""
        files = [file.path for files in self._files.values() for file in files]
        return files, {path: state for path, (state, _) in self._listed.items()}

    def _selected(self, partition: str, step: int) -> tuple[list[SessionEntry], Mapping[str | None, Advantages]]:
        """The sessions of one step, attempt by attempt, and the advantages of the acts in each attempt."""
        found: list[list[SessionEntry]] = []
        joined: dict[str | None, Advantages] = {}
        later: Advantages = {}  # by later attempts, for sessions that these attempts did not start
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
        files = [file for file in self._files[partition, step] if file.of_advantages and file.attempt == attempt]
        for file in files:
            try:
                for line in session_files.advantage_lines(file):
                    known.update(json.loads(line))
            except (DataError, ValueError, TypeError) as error:
                logger.warning("%s is damaged, and advantages in it are skipped: %s", file.path, error)
        return known

    def _by_attempt(self, partition: str, step: int) -> dict[str, list[SessionEntry]]:
        """The sessions of each attempt, which may have none."""
        files = self._files[partition, step]
        by_attempt: dict[str, list[SessionEntry]] = {file.attempt: [] for file in files}
        sessions = [file for file in files if not file.of_advantages]
        # Read plain files first: a worker that is running appends them to the compressed file, and then deletes them.
        listed = {file: self._entries(file) for file in sorted(sessions, key=lambda file: file.compressed)}
        known: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file in sorted(sessions, key=lambda file: (file.attempt, file.worker, not file.compressed)):
            # A worker that was killed between these two steps has left sessions twice.
            of_worker = known[file.attempt, file.worker]
            own = [entry for entry in listed[file] if entry.key not in of_worker]
            by_attempt[file.attempt] += own
            of_worker.update(entry.key for entry in own)
        return by_attempt

    def _entries(self, file: SessionFile) -> list[SessionEntry]:
        try:
            state = file.path.stat()
            now = state.st_size, state.st_mtime_ns
            if self._listed.get(file.path, ((0, 0), []))[0] != now:
                self._listed[file.path] = now, entries_of(file)
        except FileNotFoundError:
            return []
        return self._listed[file.path][1]

    def _line(self, entry: SessionEntry) -> bytes:
        if entry.block is not None:
            return self._lines(entry.file, entry.block)[entry.line]
        with entry.file.open("rb") as file:
            file.seek(entry.line)
            return file.readline()


def entries_of(file: SessionFile) -> list[SessionEntry]:
    """List the sessions in a file. Damaged parts are skipped with a warning."""
    entries: list[SessionEntry] = []

    def add(one: Listed, line: int, block: Block | None = None) -> None:
        attempt = file.attempt or None
        entries.append(SessionEntry(**vars(one), attempt=attempt, file=file.path, block=block, line=line))

    if not file.path.stat().st_size:
        logger.warning("%s is empty: the sessions that it had are gone", file.path)
    if file.compressed:
        for block in blocks_of(file.path):
            for number, one in enumerate(read_index(block.index)):
                add(one, number, replace(block, index=b""))
        return entries
    start = 0
    with file.path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                add(listed(unpacked(line)), start)
            except NOT_A_RECORD as error:
                kind = "is damaged" if line.endswith(b"\n") else "was not finished"
                logger.warning("%s, line %d %s and is skipped: %s", file.path, number, kind, error)
            start += len(line)
    return entries


def _session_of(act: str) -> str:
    return act.rpartition("_")[0]


def with_uniform(entries: Iterable[SessionEntry]) -> list[SessionEntry]:
    """Add to the entries of one step whether their groups are uniform."""
    entries = list(entries)
    groups: dict[tuple[str | None, str], list[SessionEntry]] = defaultdict(list)
    for entry in entries:
        if entry.status != "dropped":
            groups[entry.attempt, entry.uid].append(entry)
    uniform = {}
    for key, group in groups.items():
        rewards: dict[str, set[float]] = defaultdict(set)
        for entry in group:
            for agent, bounds in (entry.scores or {}).items():
                rewards[agent].update(bounds)
        if len(group) > 1:
            uniform[key] = all(len(values) == 1 for values in rewards.values())
    return [replace(entry, uniform=uniform.get((entry.attempt, entry.uid))) for entry in entries]


def _damaged(entry: SessionEntry) -> DataError:
    rule = "a record is where it was listed"
    fix = "copy the file again from where it was written, and list the sessions again"
    return DataError(f"session {entry.key} in {entry.file}: its record is damaged or gone", rule=rule, fix=fix)
