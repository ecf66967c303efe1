from __future__ import annotations

import pytest

from verl_mas.config.compose import compose
from verl_mas.errors import ConfigErrors

TEAM = ["+mas=solver_verifier", "+platform=cpu"]


def test_every_mistaken_override_is_refused_in_one_call_each_with_its_fix():
    fixes = {
        "foo": "write key=value",
        "trainer.logger=[a": "write key=value",
        "data.train_batch_sizee=3": "did you mean data.train_batch_size,",
        "platfrom=cpu": "--cfg job` prints every key",
        "~trainer.project": "did you mean trainer.project_name,",
        "mas.workflow.args.max_rounds=3": "++mas.workflow.args.max_rounds=3 adds it",
        "ray_kwargs.ray_init.logging_level=10": "++ray_kwargs.ray_init.logging_level=10 adds it",
        "+data.train_batch_size=3": "write data.train_batch_size=3",
    }
    with pytest.raises(ConfigErrors) as raised:
        compose([*TEAM, *fixes, "data.train_batch_size=4"])
    errors = {error.value: error for error in raised.value.errors}
    assert set(errors) == set(fixes)
    assert [mistake for mistake, fix in fixes.items() if fix not in errors[mistake].fix] == []
    assert "+" not in errors["data.train_batch_sizee=3"].fix
