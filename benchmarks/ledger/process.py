"""The identity of this training process, and the functions with which it reports its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.book import Book
from ledger.events import CONTEXT, Event, Holder


class _Process:
    book: Book
    holder: Holder | None = None
    card: str


def join(holder: Holder, card: str) -> None:
    """Set the identity of this process, which reports its memory from now on."""
    if _Process.holder is None:
        _Process.book, _Process.holder, _Process.card = Book.of_this_run(), holder, card
        report("join", CONTEXT)


def report(what: str, *take: str, free: tuple[str, ...] = (), empty_cache: bool = False) -> None:
    if _Process.holder is not None:
        _Process.book.write(Event(what, _Process.card, _Process.holder, take, free, empty_cache=empty_cache))


@contextmanager
def holding(what: str, *names: str) -> Iterator[None]:
    report(what, *names)
    yield
    report(f"{what} ends", free=names)
