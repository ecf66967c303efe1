from __future__ import annotations

import pytest

from verl_mas.config.compose import compose
from verl_mas.errors import ConfigError, ConfigErrors

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


def test_the_fix_for_a_missing_group_adds_it():
    with pytest.raises(ConfigError) as raised:
        compose(["mas=ensemble"])
    assert "+mas=ensemble" in raised.value.fix


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mas: [\nb: 2\n", r"mas/mine\.yaml\", line 3"),
        (
            "# @package _global_\ndefaults: [solver_verifer, _self_]\n",
            r"Could not load 'mas/solver_verifer'",
        ),
    ],
)
def test_a_team_file_that_is_not_yaml_or_has_no_base_is_named(tmp_path, text, says):
    (tmp_path / "mas").mkdir()
    (tmp_path / "mas" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        compose(["--config-dir", str(tmp_path), "+mas=mine"])
