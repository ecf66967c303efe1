"""Keeps in memory the modules that programs may import, because a contained program cannot open files."""

import fcntl
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, ModuleType
from typing import NamedTuple

# Folders of modules that are useless to a program, or that need files.
_SKIPPED = {
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests",
    "tkinter", "turtledemo", "venv",
}  # fmt: skip
# Beginnings of the names of extension modules that are skipped. asyncio works without _asyncio; in Python 3.13,
# importing _asyncio first breaks asyncio.
_SKIPPED_EXTENSIONS = (
    "_asyncio", "_ctypes_test", "_curses", "_dbm", "_gdbm", "_ssl", "_test", "_tkinter", "_xx", "readline", "xx",
)  # fmt: skip
# Modules that are imported before any program starts. Other modules are loaded from memory when a program imports them.
_EAGER = """
    abc argparse array ast atexit base64 binascii bisect builtins calendar cmath codecs collections collections.abc
    contextlib copy dataclasses datetime decimal enum errno fractions functools gc hashlib heapq inspect io itertools
    json keyword linecache locale logging math numbers operator os os.path pathlib pickle platform pprint queue random
    re select selectors signal stat statistics string struct sys tempfile textwrap threading time timeit token tokenize
    traceback types typing unicodedata uuid warnings weakref zlib encodings.utf_8 encodings.latin_1 encodings.ascii
    encodings.idna concurrent.futures.thread
""".split()


class StoredModule(NamedTuple):
    """The position of a module in memory. The module is stored as marshalled code or, if there is no valid .pyc file on
    disk, as source."""

    start: int
    end: int
    is_package: bool
    is_code: bool
    origin: str


class ModuleLibrary(importlib.abc.InspectLoader):
    """A finder and loader of modules from memory."""

    def __init__(self, folders: Mapping[str, str]):
        """`folders` maps each package to its folder. The key of the standard library is an empty string."""
        self._entries: dict[str, StoredModule] = {}
        descriptor = os.memfd_create("library", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(descriptor, "wb") as file:
            for package, folder in folders.items():
                for name, path, is_package in _sources(folder, package):
                    data, is_code = _code_or_source(path)
                    start = file.tell()
                    file.write(data)
                    self._entries[name] = StoredModule(start, start + len(data), is_package, is_code, path)
            file.flush()
            # The memory is sealed, so that no program can change the modules of the next program. All forks share its
            # pages.
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            self._memory = memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        spec = importlib.util.spec_from_loader(name, self, origin=entry.origin, is_package=entry.is_package)
        if spec is not None:
            spec.has_location = True
        return spec

    def get_code(self, fullname: str) -> CodeType:
        entry = self._entries[fullname]
        data = self._memory[entry.start : entry.end]
        code = marshal.loads(data) if entry.is_code else compile(bytes(data), entry.origin, "exec", dont_inherit=True)
        assert isinstance(code, CodeType)
        return code

    def get_source(self, fullname: str) -> str | None:
        return None

    def is_package(self, fullname: str) -> bool:
        return self._entries[fullname].is_package


def _files(folder: str, package: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files below a folder, each with the name of its module."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name = entry.name.partition(".")[0]
        module = f"{package}.{name}" if package else name
        if not entry.is_dir():
            yield module, entry
        elif entry.name.isidentifier() and entry.name not in _SKIPPED:
            yield from _files(entry.path, module)


def _sources(folder: str, package: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (module, file, whether it is a package) for all Python modules below a folder."""
    for module, entry in _files(folder, package):
        name, ending = os.path.splitext(entry.name)
        if ending == ".py" and name.isidentifier():
            is_package = name == "__init__"
            yield module.removesuffix(".__init__") if is_package else module, entry.path, is_package


def _code_or_source(path: str) -> tuple[bytes, bool]:
    status = os.stat(path)
    expected = importlib.util.MAGIC_NUMBER + b"".join(
        (number & 0xFFFFFFFF).to_bytes(4, "little") for number in (0, int(status.st_mtime), status.st_size)
    )
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            if file.read(16) == expected:
                return file.read(), True
    except OSError:
        pass
    with open(path, "rb") as file:
        return file.read(), False


class _Packages:
    """A finder for the allowed packages on disk. It finds no other package, even in the same folder."""

    def __init__(self, folders: Mapping[str, str]):
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._folders:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(self._folders[name])])


def load(packages: Mapping[str, str]) -> None:
    """Load all modules that programs may import into memory, then disable imports from disk."""
    standard = os.path.dirname(os.__file__)
    library = ModuleLibrary({"": standard, **packages})
    dynamic = [folder for folder in sys.path if os.path.basename(folder) == "lib-dynload"]
    sys.path[:] = [standard, *dynamic]
    sys.meta_path.append(_Packages(packages))
    for name in packages:
        importlib.import_module(name)
    for folder in dynamic:
        _import_extensions(folder, "")
    for name, folder in packages.items():
        _import_extensions(folder, name)
    for name in _EAGER:
        importlib.import_module(name)
    finders = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, library]
    sys.meta_path[:] = finders  # type: ignore[assignment]
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


def _import_extensions(folder: str, package: str) -> None:
    """Import all extension modules below a folder, except modules whose shared libraries are missing."""
    for module, entry in _files(folder, package):
        if entry.name.endswith(".so") and not entry.name.startswith(_SKIPPED_EXTENSIONS):
            with suppress(ImportError):
                importlib.import_module(module)
