"""Every wrong command line of `tests/support/wrong_configs` is refused or warned of, in clear words."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_configs import CLASSES, Case, cases, look
from wrong_configs.together import groups, look_at_all

GROUPS = groups()
# In CI they are seen together, and every night also alone.
GROUPED = {case.name for group in GROUPS for case in group}
EVERY = [
    pytest.param(case, id=f"{name}: {case.name}"[:120], marks=[pytest.mark.nightly] if case.name in GROUPED else [])
    for name in CLASSES
    for case in cases(name)
]


@pytest.mark.parametrize("case", EVERY)
def test_a_wrong_command_line_is_answered_clearly(case: Case, letters: Path, tmp_path: Path) -> None:
    seen = look(case, letters, tmp_path)
    assert seen.answers(case), seen.message


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{len(group)} with {group[0].name}"[:120])
def test_every_mistake_of_many_in_one_command_is_named(group: list[Case], letters: Path, tmp_path: Path) -> None:
    for case, seen in look_at_all(group, letters, tmp_path):
        assert seen.answers(case), f"{case.name}\n{seen.message}"
