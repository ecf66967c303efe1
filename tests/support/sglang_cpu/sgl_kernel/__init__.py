"""Stand-ins for SGLang's kernels in tests on the CPU, where SGLang calls no kernel. Any name of any module below this
one can be imported, and raises when it is called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class Kernel:
    def __init__(self, name: str):
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{self.__name__}: SGLang's kernels need a GPU")

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self.__name__}.{name}")


class Kernels(ModuleType):
    __getattr__ = Kernel.__getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        inside = fullname.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if inside else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Kernels(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


sys.meta_path.append(Finder())
sys.modules[__name__].__class__ = Kernels
