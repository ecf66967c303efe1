"""The sessions of a run by step and split, and what changed since they were read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from verl_mas.run_folder.records import Record
from verl_mas.run_folder.session_files import PARTITIONS, files_of
from verl_mas.sessions.reader import SessionEntry, SessionIndex


@dataclass(frozen=True)
class Part:
    """The sessions of one step that were trained on, or that validated."""

    partition: str
    step: int
    # Name and size of each file: a run appends to them and adds others.
    files: tuple[tuple[str, int], ...]


class Source:
    """The session records in a folder, which may be written while they are read."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self._index: SessionIndex | None = None
        self._entries: dict[tuple[str, int], list[SessionEntry]] = {}

    def parts(self, steps: tuple[int, int] | None = None) -> list[Part]:
        """As the files are now. In the order in which they happened: a validation follows the training of its step."""
        if self.folder is None:
            return []
        found: dict[tuple[int, str], list[tuple[str, int]]] = defaultdict(list)
        for partition in PARTITIONS:
            for file in files_of(self.folder / partition):
                if steps is None or steps[0] <= file.step <= steps[1]:
                    found[file.step, partition].append((file.path.name, file.path.stat().st_size))
        if found:
            self._list()
        return [Part(partition, step, tuple(sorted(files))) for (step, partition), files in sorted(found.items())]

    def _list(self) -> None:
        assert self.folder is not None
        if self._index is None:
            self._index = SessionIndex(self.folder)
        else:
            self._index.refresh()
        self._entries = defaultdict(list)
        for entry in self._index.entries:
            # Tasks from before the first step have numbers below 0 and are filed with step 0.
            self._entries[entry.partition, max(entry.step, 0)].append(entry)

    def sessions(self, part: Part) -> list[Record]:
        """Those of one group beside each other, the groups in the order in which their first sessions ended."""
        assert self._index is not None
        groups: dict[tuple[str | None, str], list[Record]] = defaultdict(list)
        for record in self._index.records(self._entries.get((part.partition, part.step), [])):
            groups[record["attempt"], record["uid"]].append(record)
        return [record for group in groups.values() for record in sorted(group, key=lambda record: record["session"])]
