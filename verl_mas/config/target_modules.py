"""Which modules of a model a LoRA adapter is on, by PEFT's rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias, cast

from verl_mas.errors import ConfigError

ALL_LINEAR = "all-linear"
# A text is a regular expression for whole names, an item of a list is a name or its last parts.
Targets: TypeAlias = str | list[str] | None


def plain(names: object) -> Targets:
    """A value of a configuration, whose lists are OmegaConf's."""
    return names if names is None or isinstance(names, str) else [str(name) for name in cast("Iterable[object]", names)]


def targeted(names: Iterable[str], wanted: Targets, excluded: Targets = None) -> list[str]:
    """Those of the names that `target_modules` selects and `exclude_modules` does not.

    `all-linear` and None are all of them: the caller leaves out what is not linear, and the head.
    """
    kept = [name for name in names if not (excluded and _selects(excluded, name, "exclude_modules"))]
    if wanted is None or wanted == ALL_LINEAR:
        return kept
    return [name for name in kept if _selects(wanted, name, "target_modules")]


def _selects(wanted: str | list[str], name: str, key: str) -> bool:
    if not isinstance(wanted, str):
        return any(name == item or name.endswith(f".{item}") for item in wanted)
    try:
        return re.fullmatch(wanted, name) is not None
    except re.error as error:
        raise ConfigError(
            f"model.{key}={wanted}", rule=f"a text is a regular expression: {error}", fix="correct it, or name modules"
        ) from error
