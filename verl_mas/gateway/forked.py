"""The fork server of programs. Of a Python program it imports what its file imports, and each session is a fork; any
other command is started in a fork that has imported nothing.

The file itself and modules of the user run in the fork alone, as they make clients of the session's address and key.
Standard library alone, so that any interpreter can run it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import posix
import re
import socket
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec

from verl_mas.gateway import launch
from verl_mas.util import as_main
from verl_mas.util.fork_server import (
    CONTROL,
    MAX_MESSAGE,
    MOST_SAID,
    CannotFork,
    Forks,
    bare_fork,
    unsafe_state,
    why_not,
)

INSTALLED = re.compile(rf"/(site|dist)-packages(/|$)|^{re.escape(os.path.dirname(os.path.realpath(os.__file__)))}/")
# Where imports are found, and what they read: such statements of a file are executed, too.
SETTINGS = ("sys.path", "os.environ")
# Joined, they begin the variables of the fork server that each session has its own of, and that end with their names.
MARK = ("verl-mas", "preload.invalid")
LATE = b"\0"  # around the names of modules within an outcome, whose JSON has no such byte
# These have random numbers of their own, which a fork would share with the others.
SEEDED = ("numpy.random", "torch")


class Programs(Forks):
    """Its settings are the file of the program. Without one, forks become the commands of sessions."""

    def __init__(self, file: str | None):
        self._file = file
        self.greeting, self._own = {}, list[tuple[dict[str, object], str, str]]()
        self._learned = False
        if self._file is not None:
            self._import(self._file)

    def _import(self, file: str) -> None:
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
        # By the line that an error ends with.
        failures = [failure.rstrip()[-MOST_SAID:] for failure in imported(file, set())]
        self.greeting = {failure.rpartition("\n")[2][-500:]: failure for failure in failures}
        while len(json.dumps(self.greeting)) > MAX_MESSAGE:
            self.greeting.popitem()
        self._settle()

    def _settle(self) -> None:
        """Make this process fit to be forked, or raise CannotFork."""
        self._own += _own_globals()
        gc.collect()
        if reason := unsafe_state() or _open_socket() or _kept() or why_not(_trial):
            raise CannotFork("forks", reason)
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # The collector of a fork would write to, and so copy, each page.

    def learn(self, names: Sequence[str]) -> None:
        """Import what a program has imported while it ran, as `openai` does, if that does not prevent forks."""
        if not self._learned and not why_not(partial(self._import_late, names)):
            self._import_late(names)
        self._learned = True

    def _import_late(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(ImportError, ValueError):  # a module may make others that have no file
                if INSTALLED.search(_place(importlib.util.find_spec(name))):
                    importlib.import_module(name)
        self._settle()

    def fork(self) -> int:
        return bare_fork()  # `launch` forks again

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        session, stdin, printed, outcome = descriptors
        for number, descriptor in enumerate((stdin, printed, printed)):
            os.dup2(descriptor, number)
        os.close(stdin)
        os.close(printed)
        with open(session) as file:
            argv, environ, folder = json.load(file)
        os.chdir(folder)
        become = partial(launch.execute, argv) if self._file is None else partial(self._run, self._file, argv[1:])
        launch.isolated(outcome, partial(become, environ))

    def _run(self, file: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        code, before = 1, (dict(os.environ), list(sys.path), set(sys.modules), os.fstat(launch.OUTCOME).st_ino)
        try:
            os.environ.clear()
            os.environ.update(environ)
            for module, name, variable in self._own:
                module[name] = os.environ.get(variable)
            for name in SEEDED:
                if name in sys.modules:
                    sys.modules[name].seed()
            with open(file, "rb") as source:
                program = compile(source.read(), file, "exec", dont_inherit=True)
            code = as_main.run(program, file, argv)
            if not code and not self._learned:
                _tell(environ, *before)
        except BaseException as error:  # noqa: BLE001  boundary: it does not compile, or has no rights
            traceback.print_exception(type(error), error, None)
        finally:
            as_main.finish(code)


def _tell(environ: Mapping[str, str], had: Mapping[str, str], path: list[str], modules: set[str], outcome: int) -> None:
    """Name the modules that the program has imported while it ran, beside its outcome. If it has changed what modules
    find when they are imported, they could be others in the fork server."""
    unchanged = (os.environ.get(name) in (environ.get(name), had.get(name)) for name in {*os.environ, *environ})
    if sys.path == path and all(unchanged):
        names = " ".join(name for name in sys.modules if name not in modules).encode()
        with contextlib.suppress(OSError):  # the program may have closed it
            if os.fstat(launch.OUTCOME).st_ino == outcome:
                os.write(launch.OUTCOME, LATE + names[: MAX_MESSAGE // 2] + LATE)


def imported(file: str, seen: set[str]) -> Iterator[str]:
    """Import the installed packages that a file imports at its top level, and those of the user's modules that it
    imports. The tracebacks of imports that fail."""
    seen.add(file)
    names: dict[str, object] = {"__file__": file, "__name__": "__verl_mas__"}
    try:
        with open(file, "rb") as source:
            body = ast.parse(source.read(), file).body
    except (SyntaxError, ValueError, OSError):  # which the session says
        return
    for node, needed in _statements(body):
        own = _own_files(node, file)
        for each in (own or set()) - seen:
            yield from imported(each, seen)
        if own is None and (failure := _executed(node, file, names)) and needed:
            yield failure


def _statements(body: Sequence[ast.stmt], needed: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """The imports, and whether the program needs them; and what is set before them."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((ast.copy_location(ast.Import([alias]), node), needed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, needed
        elif isinstance(node, ast.Try):
            yield from _statements(node.body, False)
        elif isinstance(node, ast.Expr | ast.Assign) and ast.unparse(node).startswith(SETTINGS):
            yield node, False


def _executed(node: ast.stmt, file: str, names: dict[str, object]) -> str:
    """The traceback if it fails."""
    try:
        exec(compile(ast.Module([node], []), file, "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001  boundary: the session fails as well, or the program handles it
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(type(error), error, frames))
    return ""


def _own_files(node: ast.stmt, file: str) -> set[str] | None:
    """The files of the user's modules that a statement imports; None if they are not the user's."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return None
    names = [alias.name for alias in node.names]
    module = names.pop() if isinstance(node, ast.Import) else node.module or ""
    parts = module.split(".") if module else []
    if isinstance(node, ast.ImportFrom) and node.level:
        base = os.path.normpath(os.path.join(os.path.dirname(file), *[".."] * (node.level - 1)))
    elif not (base := _own_folder(parts[0])):
        return None
    modules = [*(parts[: end + 1] for end in range(len(parts))), *([*parts, name] for name in names)]
    files = {os.path.join(base, *each) + ending for each in modules for ending in (".py", "/__init__.py")}
    return set(filter(os.path.isfile, files))


def _own_folder(module: str) -> str:
    """The folder in which a module of the user is; empty if it is installed or unknown."""
    with contextlib.suppress(ImportError, ValueError):
        place = _place(importlib.util.find_spec(module))
        if place and not INSTALLED.search(place):
            return os.path.dirname(place)
    return ""


def _place(spec: ModuleSpec | None) -> str:
    """The folder of a package, or the file of a module; empty if it has none."""
    folders = list(spec.submodule_search_locations or ()) if spec else []
    place = folders[0] if folders else spec.origin if spec and spec.has_location else None
    return os.path.realpath(place) if place else ""


def _open_socket() -> str:
    """A connection, or the selector of an event loop, which all forks would share."""
    for number in set(os.listdir("/proc/self/fd")) - {str(CONTROL)}:
        with contextlib.suppress(OSError):  # that of the folder itself
            if (link := os.readlink(f"/proc/self/fd/{number}")).startswith(("socket:", "anon_inode:")):
                return f"an import opened {link}"
    return ""


def _own_globals() -> list[tuple[dict[str, object], str, str]]:
    """Find the globals of modules that are a variable of a session, with their modules and its name: each fork sets its
    own, as for the address of Azure that `openai` reads at import."""
    variables = {value: name for name, value in os.environ.items() if "-".join(MARK) in value}
    modules = [vars(module) for module in sys.modules.values() if isinstance(module, types.ModuleType)]
    texts = [(module, *each) for module in modules for each in module.items() if type(each[1]) is str]
    found = [(module, name, variables[value]) for module, name, value in texts if value in variables]
    for module, name, _ in found:
        module[name] = None
    return found


def _kept() -> str:
    """What else has a variable of the environment that each session has its own of: here its value has the mark."""
    mark = "-".join(MARK)  # nothing but this frame has it
    for holder in gc.get_objects():
        for value in _referents(holder):
            if (type(value) is str and mark in value) or (type(value) is bytes and mark.encode() in value):
                kind = type(holder)
                place = holder.get("__name__") if kind is dict else f"{kind.__module__}.{kind.__qualname__}"
                return f"an import keeps the address or key of a session, in {place}"
    return ""


def _referents(holder: object) -> Iterator[object]:
    """What it refers to, also by tuples and dictionaries that the collector does not track."""
    for value in gc.get_referents(holder) if holder is not posix.environ else ():
        yield value
        if type(value) in (tuple, dict) and not gc.is_tracked(value):
            yield from _referents(value)


def _trial() -> None:
    """Use an event loop, a thread and the resolver."""
    asyncio.run(asyncio.to_thread(socket.getaddrinfo, "127.0.0.1", 80))
