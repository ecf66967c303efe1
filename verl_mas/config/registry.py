"""The registry type. Entries are found by name; decorators, files in a folder and installed packages register them.

A registry refuses duplicates, and lists the known names in the error for an unknown name.
"""

from __future__ import annotations

import difflib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

from verl_mas.errors import ConfigError, WorkflowError
from verl_mas.util.later import Later

T = TypeVar("T")


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to a mistyped name; an empty string if no name is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), "")


def nearest(name: str, known: Sequence[str]) -> str:
    """Format a hint for a mistyped name: the closest known name, then all known names."""
    close = closest(name, known)
    hint = f"did you mean {close!r}? " if close else ""
    return f"{hint}known: {', '.join(sorted(known)) or 'none'}"


def installed(group: str | None) -> list[EntryPoint]:
    """List the entry points of installed packages in a group, sorted by name."""
    return list(_installed(group, tuple(sys.path))) if group else []


@cache
def _installed(group: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """Read the metadata of every package on the path. This takes milliseconds, so the result is cached."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


class Registry(Generic[T]):
    """Entries by name.

    `package` is the folder of shipped entries. Importing a file registers an entry under the file's name; files whose
    name starts with an underscore are skipped. `group` is the entry-point group of other packages. An entry point names
    a module, which registers an entry under the name of the entry point.
    """

    def __init__(self, noun: str, *, package: str | None = None, group: str | None = None):
        self.noun, self.package, self._group = noun, package, group
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(entry: T) -> T:
            # A name of a shipped entry is taken, even if its file is not imported yet.
            shipped = name in self._in_folder() and f"{self.package}.{name}" not in sys.modules
            if shipped or self._entries.get(name, entry) is not entry:
                value = f"{self.noun} {name!r} is registered twice"
                raise ConfigError(value, rule=f"every {self.noun} has one name", fix="rename one of the two")
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """List the names of all entries, without importing them."""
        return sorted({*self._entries, *self._in_folder(), *(point.name for point in installed(self._group))})

    def find(self, name: str, setting: str | None = None) -> T:
        """Return the entry with this name. If there is no such entry, raise a ConfigError that names `setting`."""
        if name not in self._entries:
            self._import(name)
        if name not in self._entries:
            value = f"{setting}={name}" if setting else f"{self.noun} {name!r} is not known"
            rule = f"{_a(self.noun)} is one that we ship, one of an installed package, or one of mas.plugins"
            raise ConfigError(value, rule=rule, fix=nearest(name, self.names()))
        return self._entries[name]

    __getitem__ = find

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _import(self, name: str) -> None:
        shipped = [f"{self.package}.{name}"] if name in self._in_folder() else []
        points = [point for point in installed(self._group) if point.name == name]
        modules = shipped + [point.module for point in points]
        if len(modules) > 1:
            value = f"{self.noun} {name!r} is in {' and in '.join(modules)}"
            fix = "uninstall one of the packages, or ask its authors for another name"
            raise ConfigError(value, rule=f"every {self.noun} has one name", fix=fix)
        for module in modules:
            import_module(module)
        if points and name not in self._entries:
            value = f"entry point {self._group}: {name} = {points[0].value}"
            fix = f"register it under that name in {points[0].module}, or correct the entry point"
            raise ConfigError(value, rule=f"that module registers {_a(self.noun)} named {name!r}", fix=fix)

    def _in_folder(self) -> list[str]:
        if self.package is None:
            return []
        modules = pkgutil.iter_modules(import_module(self.package).__path__)
        return [module.name for module in modules if not module.name.startswith("_")]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


class Extra(Later):
    """A package that an extra of verl-mas installs. `verl-mas list` marks entries whose file needs a missing
    package."""

    def __init__(self, package: str, extra: str):
        super().__init__(package)
        self.extra_name = extra

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            self.require()
            return super().__getattr__(name)

    def require(self) -> None:
        if self.install_command:
            rule = f"the extra {self.extra_name} installs it; a run needs it on every node"
            raise ConfigError(f"{self.__name__} is not installed", rule=rule, fix=self.install_command)

    @property
    def install_command(self) -> str | None:
        """Command that installs the package; None if it is installed."""
        return None if find_spec(self.__name__) else f"pip install 'verl-mas[{self.extra_name}]'"


# Names that other libraries use -> the names of verl-mas.
MEANT = dict.fromkeys(("content", "response", "output", "strip", "split", "lower"), "text")
MEANT |= {"answer": "ground_truth", "label": "ground_truth", "prompt": "question", "input": "question"}
MEANT |= {"score": "reward", "generate": "act", "chat": "act", "ask": "act", "run": "act"}


class UnknownName(WorkflowError, AttributeError):
    """An attribute or argument that a class does not have. If other libraries use this name, the fix suggests the name
    that verl-mas uses."""

    @classmethod
    def of(cls, kind: type, name: str) -> UnknownName:
        known = names_of(kind)
        fix = nearest(MEANT[name] if MEANT.get(name) in known else name, sorted(known))
        return cls(f"{kind.__name__} has no {name!r}", rule="a misspelled name would be lost", fix=fix)


@cache
def names_of(kind: type) -> frozenset[str]:
    return frozenset(name for name in (*dir(kind), *vars(kind).get("__dataclass_fields__", ())) if name[0] != "_")


class KnownNames:
    """A base class that raises UnknownName for an unknown argument of the constructor or an unknown attribute."""

    if not TYPE_CHECKING:

        def __new__(cls, *given: object, **named: object) -> object:
            for name in named.keys() - names_of(cls):
                raise UnknownName.of(cls, name)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):  # protocols, such as copying, look up such names
                raise AttributeError(name)
            raise UnknownName.of(type(self), name)
