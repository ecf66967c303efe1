"""The programs of other frameworks still send what was recorded. Needs the environments of `make frameworks`."""

from __future__ import annotations

import pytest
from framework_programs import ENVIRONMENT, REPLIES, WITH_OPENAI_2, recorded, sent

MISSING = [folder.name for folder in (ENVIRONMENT, WITH_OPENAI_2) if not folder.is_dir()]
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: make frameworks")]


@pytest.mark.parametrize("name", REPLIES)
def test_a_program_sends_what_was_recorded(name):
    assert sent(name) == recorded(name)
