"""Packages that are imported when one of their attributes is read, for modules that a short command imports, too.

from verl_mas.util.later import Tensor, torch
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["Tensor", "np", "pd", "torch"]


class Later(ModuleType):
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
    # For annotations, which nothing evaluates; anything else fails with it.
    Tensor = None
