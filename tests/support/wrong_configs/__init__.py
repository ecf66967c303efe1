"""Wrong command lines, a module of `CASES` per class. `python -m wrong_configs` counts what `check` says of them."""

from __future__ import annotations

import importlib
import pkgutil

from wrong_configs.case import Case

CLASSES = tuple(
    module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("case", "files", "__main__")
)


def cases(name: str) -> tuple[Case, ...]:
    """The cases of a class."""
    found: tuple[Case, ...] = importlib.import_module(f"wrong_configs.{name}").CASES
    return found
