"""The one registry type: refuses duplicates, lists the known names on a miss, returns what it decorates."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from verl_mas.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """A sentence that helps with a mistyped name."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(sorted(known)) or 'none'}"


class Registry(Generic[T]):
    def __init__(self, noun: str):
        self.noun = noun
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(entry: T) -> T:
            if self._entries.get(name, entry) is not entry:
                raise ConfigError(
                    f"{self.noun} {name!r} is registered twice",
                    rule=f"every {self.noun} has one name",
                    fix="rename one of the two",
                )
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise ConfigError(
                f"{self.noun} {name!r} is not known",
                rule=f"a {self.noun} must be registered before it is used",
                fix=nearest(name, list(self._entries)),
            )
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))
