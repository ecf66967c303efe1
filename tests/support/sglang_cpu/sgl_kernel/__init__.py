"""SGLang's kernels for tests on the CPU, where it calls none: any name of any module here raises when it is called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import multiprocessing
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


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


class Unpinned(TorchFunctionMode):
    """SGLang's adapters are in memory that a GPU reads, which torch does not give without one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs = kwargs or {}
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


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
if multiprocessing.parent_process():
    # In its scheduler, and not in the processes of verl that import SGLang.
    Unpinned().__enter__()
