"""Lazy imports: names of a large package, or public names of our packages, are imported when they are used.

from verl_mas.util.later import Tensor, torch
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["Tensor", "lazy", "np", "pd", "torch"]


class Later(ModuleType):
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            value = getattr(importlib.import_module(self.__name__), name)
            # The next access finds a plain attribute.
            setattr(self, name, value)
            return value


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    from torch import Tensor
else:
    np, pd, torch = Later("numpy"), Later("pandas"), Later("torch")
    # `Tensor` is only for annotations, which are not evaluated. Any other use of it fails.
    Tensor = None


def lazy(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package from the imports under `if TYPE_CHECKING` in its file.

    Editors and type checkers read these imports, too, so the public names are listed only once.
    """
    (block,) = (node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    home_of = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        # The next access finds a plain attribute.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, sorted(home_of)
