"""The events of a run in progress. They are in one file, which every process of the run reads and appends to."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ledger.account import Account, require
from ledger.events import Event, Holder
from ledger.sizes import Sizes, read_sizes

FILE, SIZES = "LEDGER_FILE", "LEDGER_SIZES"


class Book:
    """The file as this process sees it. Each process accounts for the events of all processes, so the process whose
    event does not fit raises the error."""

    def __init__(self, path: Path, sizes: Sizes):
        self._path = path
        self._read = 0
        self._account = Account(sizes)

    @classmethod
    def of_this_run(cls) -> Book:
        return cls(Path(os.environ[FILE]), read_sizes(Path(os.environ[SIZES])))

    def write(self, event: Event) -> None:
        """Write an event. If it does not fit, raise Refused, but write the event nevertheless."""
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file.fileno())
            file.write(event.line())
            file.flush()
            self._read = file.tell()
            entry = self._account.add(event)
        if entry:
            require(entry)

    def card_of(self, holder: Holder) -> str:
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            self._catch_up(file.fileno())
        card: str = self._account.card_of(holder)
        return card

    def _catch_up(self, file: int) -> None:
        """Read the events that other processes have written."""
        os.lseek(file, self._read, os.SEEK_SET)
        data = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
        self._read += len(data)
        for line in data.decode().splitlines():
            self._account.add(Event.of(line))


def read_events(path: Path) -> list[Event]:
    return [Event.of(line) for line in path.read_text().splitlines()]
