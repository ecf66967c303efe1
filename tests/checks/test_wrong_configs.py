"""Every wrong command line of `tests/support/wrong_configs` is refused or warned of, in clear words."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from wrong_configs import CLASSES, Case, cases, look
from wrong_configs.together import groups, look_at_all

GROUPS = groups()
# In CI they are seen together, and every night also alone.
GROUPED = {case.name for group in GROUPS for case in group}


def every_case():
    """Of those that can only be seen alone, CI takes every fourth of each class."""
    for name in CLASSES:
        place = count()
        for case in cases(name):
            in_ci = case.name not in GROUPED and next(place) % 4 == 0
            marks = [] if in_ci else [pytest.mark.nightly]
            yield pytest.param(case, id=f"{name}: {case.name}"[:120], marks=marks)


def every_group():
    """CI takes every second."""
    for number, group in enumerate(GROUPS):
        marks = [pytest.mark.nightly] if number % 2 else []
        yield pytest.param(group, id=f"{len(group)} with {group[0].name}"[:120], marks=marks)


@pytest.mark.parametrize("case", every_case())
def test_a_wrong_command_line_is_answered_clearly(case: Case, letters: Path, tmp_path: Path) -> None:
    seen = look(case, letters, tmp_path)
    assert seen.answers(case), seen.message


@pytest.mark.parametrize("group", every_group())
def test_every_mistake_of_many_in_one_command_is_named(group: list[Case], letters: Path, tmp_path: Path) -> None:
    for case, seen in look_at_all(group, letters, tmp_path):
        assert seen.answers(case), f"{case.name}\n{seen.message}"
