"""The fork server of programs. It imports the packages that the file of a Python program imports, and each session
runs in a fork of this server. Other commands, such as `node team.mjs`, run in forks of a server that has imported no
packages.

The file itself and the user's modules run only in the fork, because they may create clients with the session's address
and key. This module needs only the standard library, so that any interpreter can run it.
"""

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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

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
# Objects that decide which modules are imported. Statements that begin with one of these names are executed, too.
SETTINGS = ("sys.path", "os.environ")
# The two parts of a mark, which a hyphen joins. In the fork server, the value of each environment variable that differs
# per session contains the mark. The whole mark is not written here, because `_kept` would find it in this module.
MARK = ("verl-mas", "preload.invalid")
# Modules with a random state of their own. Each fork seeds them again, because it inherits the state of the server.
SEEDED = ("numpy.random", "torch")

# The namespace of a module, a name in the namespace, and the environment variable with the value of this name.
Named = tuple[dict[str, object], str, str]


class Programs(Forks):
    """Runs one program file in forks. `settings` are the file, and further modules to import. Without a file, a fork
    executes the command of a session."""

    def __init__(self, settings: tuple[str | None, Sequence[str]]):
        self._file, modules = settings
        self.greeting = {}
        self._named: list[Named] = []
        if self._file is not None:
            self._import(self._file, modules)

    def _import(self, file: str, modules: Sequence[str]) -> None:
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
        for name in modules:
            if failure := _executed(ast.parse(f"import {name}").body[0], "preload", {}):
                raise CannotFork("preload", failure)
        # The greeting maps the last line of each traceback to the whole traceback.
        failures = [failure.rstrip()[-MOST_SAID:] for failure in imported(file, set())]
        self.greeting = {failure.rpartition("\n")[2][-500:]: failure for failure in failures}
        while len(json.dumps(self.greeting)) > MAX_MESSAGE:
            self.greeting.popitem()
        self._named = [*_named()]
        for names, name, _ in self._named:
            names[name] = None
        gc.collect()
        if reason := unsafe_state() or _open_socket() or _kept() or why_not(_trial):
            raise CannotFork("forks", reason)
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # Otherwise the collector of a fork would write to each page and so copy it

    def fork(self) -> int:
        return bare_fork()  # without Python's fork hooks: the fork only starts another process and waits for it

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        session, stdin, printed, outcome = descriptors
        for number, descriptor in enumerate((stdin, printed, printed)):
            os.dup2(descriptor, number)
        os.close(stdin)
        os.close(printed)
        with open(session) as file:
            argv, environ, folder = json.load(file)
        os.chdir(folder)
        own = partial(_run, self._file or "", argv[1:], self._named)
        launch.isolated(outcome, partial(own if self._file else partial(launch.execute, argv), environ))


def _run(file: str, argv: Sequence[str], named: Sequence[Named], environ: Mapping[str, str]) -> None:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environ)
        for names, name, variable in named:
            names[name] = environ[variable]
        for name in SEEDED:
            if name in sys.modules:
                sys.modules[name].seed()
        with open(file, "rb") as source:
            program = compile(source.read(), file, "exec", dont_inherit=True)
        code = as_main.run(program, file, argv)
    except BaseException as error:  # noqa: BLE001  boundary: the file does not compile, or cannot be read
        traceback.print_exception(type(error), error, None)
    finally:
        as_main.finish(code)


def imported(file: str, seen: set[str]) -> Iterator[str]:
    """Import the installed packages that a file imports at its top level. If it imports modules of the user, the
    packages that these modules import are imported as well, but the modules themselves are not. Yields the tracebacks
    of failed imports."""
    seen.add(file)
    names: dict[str, object] = {"__file__": file, "__name__": "__verl_mas__"}
    try:
        with open(file, "rb") as source:
            body = ast.parse(source.read(), file).body
    except (SyntaxError, ValueError, OSError):  # the session will raise and report this error
        return
    for node, needed in _statements(body):
        own = _own_files(node, file)
        for each in (own or set()) - seen:
            yield from imported(each, seen)
        if own is None and (failure := _executed(node, file, names)) and needed:
            yield failure


def _statements(body: Sequence[ast.stmt], needed: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the import statements of a file, and the statements that change SETTINGS, in their order. Each statement
    comes with a bool: whether its failure is reported. Failures of imports in `try` and of changes of SETTINGS are not
    reported."""
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
    """Execute a statement; return the traceback if it fails."""
    try:
        exec(compile(ast.Module([node], []), file, "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001  boundary: a session will report it, or the program handles it
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(type(error), error, frames))
    return ""


def _own_files(node: ast.stmt, file: str) -> set[str] | None:
    """Return the files of the user's modules that a statement imports; None if it imports no modules of the user."""
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
    """Return the folder of a user's module; empty if the module is installed or unknown."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        place = folders[0] if folders else spec.origin if spec and spec.has_location else None
        if place and not INSTALLED.search(os.path.realpath(place)):
            return os.path.dirname(os.path.realpath(place))
    return ""


def _open_socket() -> str:
    """Find an open connection, or the selector of an event loop, because all forks would share it. Return a
    description; empty if there is none."""
    for number in set(os.listdir("/proc/self/fd")) - {str(CONTROL)}:
        with contextlib.suppress(OSError):  # the descriptor with which the folder was listed is closed
            if (link := os.readlink(f"/proc/self/fd/{number}")).startswith(("socket:", "anon_inode:")):
                return f"an import opened {link}"
    return ""


def _named() -> Iterator[Named]:
    """Find attributes of modules, such as `openai.azure_endpoint`, that equal an environment variable that differs per
    session. Each fork sets these attributes to the values of its session."""
    variables = {value: name for name, value in os.environ.items() if "-".join(MARK) in value}
    for names in gc.get_objects():
        for name, value in names.items() if type(names) is dict and "__spec__" in names else ():
            if type(value) is str and value in variables:
                yield names, name, variables[value]


def _kept() -> str:
    """Find an object that contains the value of a variable that differs per session. In this process, the values of
    these variables contain the mark. Return a description; empty if there is no such object."""
    mark = "-".join(MARK)  # a local variable, so that only this frame refers to the string
    for holder in gc.get_objects():
        for value in _referents(holder):
            if (type(value) is str and mark in value) or (type(value) is bytes and mark.encode() in value):
                kind = type(holder)
                place = holder.get("__name__") if kind is dict else f"{kind.__module__}.{kind.__qualname__}"
                return f"an import keeps the address or key of a session, in {place}"
    return ""


def _referents(holder: object) -> Iterator[object]:
    """Yield the objects to which `holder` refers, also through tuples and dictionaries that the collector does not
    track."""
    for value in gc.get_referents(holder) if holder is not posix.environ else ():
        yield value
        if type(value) in (tuple, dict) and not gc.is_tracked(value):
            yield from _referents(value)


def _trial() -> None:
    """Use an event loop, a thread and the resolver. A fork runs this function, to test whether all three work in it."""
    asyncio.run(asyncio.to_thread(socket.getaddrinfo, "127.0.0.1", 80))
