"""Every setting of verl and of a team, with values that it refuses and values that it takes."""

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Literal, get_args, get_origin, is_typeddict

from verl_mas.checks.settings import takes
from verl_mas.config.schema import MasConfig
from verl_mas.config.values import Hint, core_type, problems, settable
from verl_mas.config.verl_settings import SettingsSection, verl_settings

# Every setting with a type refuses some of these values.
WRONG = ["no such value", 5, -1, 1.5, -(10**9), 10**9, True, [[]], math.nan, ""]
# Most settings take one of these values.
USUAL: list[object] = [None, False, True, 0, 1, 2, 64, 100_000, 0.0, 0.1, 0.5, 1.0, 2.5, "", "auto", "a", [], ["a"], {}]


def verls() -> Iterator[tuple[str, Hint]]:
    """Every setting of verl with a type, outside of the sections that are passed on to others."""

    def below(section: SettingsSection) -> Iterator[tuple[str, Hint]]:
        for key in section.keys:
            path = f"{section.path}.{key}".lstrip(".")
            inner = section.below(key)
            if inner:
                yield from below(inner)
            elif key != "_target_":
                yield path, takes(path) or section.hint(key)

    return below(verl_settings())


def ours(kind: Hint = MasConfig, path: str = "mas") -> Iterator[tuple[str, Hint]]:
    """Every setting of the team; `x` stands for the names of agents, policies, pools and servers."""
    for name, hint in settable(kind).items():
        inner, here = core_type(hint), f"{path}.{name}"
        yield here, hint
        if get_origin(inner) is dict:
            inner, here = get_args(inner)[1], f"{here}.x"
        if is_dataclass(inner) or is_typeddict(inner):
            yield from ours(inner, here)


def refused_by(hint: Hint) -> list[object]:
    return [value for value in WRONG if problems(hint, value, "it")]


def taken_by(hint: Hint) -> list[object]:
    """Some values that a setting takes, and every choice."""
    parts = [hint, *get_args(hint), *(choice for part in get_args(hint) for choice in get_args(part))]
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    return [value for value in [*USUAL, *choices] if not problems(hint, value, "it")]
