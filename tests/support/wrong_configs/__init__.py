"""Wrong command lines, a module of `CASES` per class."""

from __future__ import annotations

import importlib
import pkgutil

from wrong_configs.case import Case

CLASSES = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("case", "files"))


def cases(name: str) -> tuple[Case, ...]:
    """The cases of a class."""
    found: tuple[Case, ...] = importlib.import_module(f"wrong_configs.{name}").CASES
    return found
