from __future__ import annotations

import pytest

from verl_mas.checks.trainer import REQUIRED, check_settings


@pytest.mark.parametrize("required", REQUIRED, ids=lambda required: required.key)
def test_every_required_setting_is_one_of_verl_and_its_fix_makes_it_pass(make, required):
    key = required.key.replace(".", "__")
    wrong = "sync" if isinstance(required.value, str) else not required.value
    assert [error.value for error in check_settings(make(**{key: wrong}))] == [f"{required.key}={wrong}"]
    assert list(check_settings(make(**{key: required.value}))) == []
