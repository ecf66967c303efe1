"""Every wrong command line of `tests/support/wrong_configs` is refused or warned of, in clear words."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_configs import CLASSES, Case, Verdict, cases, look

EVERY = [pytest.param(case, id=f"{name}: {case.name}"[:120]) for name in CLASSES for case in cases(name)]


@pytest.mark.parametrize("case", EVERY)
def test_a_wrong_command_line_is_answered_clearly(case: Case, letters: Path, tmp_path: Path) -> None:
    seen = look(case, letters, tmp_path)
    assert seen.verdict is (Verdict.WARNED if case.warned else Verdict.REFUSED), seen.message
