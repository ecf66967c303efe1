from __future__ import annotations

import pytest

from verl_mas.config.compose import compose
from verl_mas.errors import ConfigError, ConfigErrors

TEAM = ["+mas=solver_verifier", "+platform=cpu"]


def refusal(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        compose([*TEAM, *arguments])
    assert not isinstance(raised.value, ConfigErrors)
    return raised.value


def test_the_overrides_are_over_verls_own_configuration():
    config = compose([*TEAM, "data.train_batch_size=3"])
    assert (config.data.train_batch_size, config.trainer.device) == (3, "cpu")


@pytest.mark.parametrize(
    ("mistake", "fix"),
    [
        ("data.train_batch_sizee=3", "did you mean data.train_batch_size,"),
        ("platfrom=cpu", "--cfg job` prints every key"),
        ("~trainer.project", "did you mean trainer.project_name,"),
        ("mas.agents.solvr.policy=a", "did you mean mas.agents.solver.policy,"),
        ("mas.pools.fast.nnodes=1", "++mas.pools.fast.nnodes=1 adds it"),
        ("mas.workflow.args.max_rounds=3", "++mas.workflow.args.max_rounds=3 adds it"),
        ("ray_kwargs.ray_init.logging_level=10", "++ray_kwargs.ray_init.logging_level=10 adds it"),
        ("actor_rollout_ref.rollout.repetition_penalty=1", "++actor_rollout_ref.rollout.repetition_penalty=1 adds it"),
        ("+data.train_batch_size=3", "write data.train_batch_size=3"),
        ("foo", "write key=value"),
        ("trainer.logger=[a", "write key=value"),
        ("--json", "leave it out; known: --config-dir"),
    ],
)
def test_a_mistake_is_refused_with_a_fix(mistake, fix):
    error = refusal(mistake)
    assert fix in error.fix
    assert mistake in error.value or error.value.startswith("Ambiguous value")


def test_the_fix_for_a_mistyped_key_is_not_a_plus():
    assert "+" not in refusal("data.train_batch_sizee=3").fix


def test_the_fix_for_a_missing_group_adds_it():
    with pytest.raises(ConfigError) as raised:
        compose(["mas=ensemble"])
    assert "+mas=ensemble" in raised.value.fix


def test_every_mistyped_override_is_reported_in_one_call():
    with pytest.raises(ConfigErrors) as raised:
        compose([*TEAM, "foo", "data.train_batch_sizee=3", "data.train_batch_size=4", "trainer.lger=[]"])
    assert [error.value for error in raised.value.errors] == ["foo", "data.train_batch_sizee=3", "trainer.lger=[]"]


def test_the_fix_for_a_missing_config_dir_lists_the_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "teams").mkdir()
    error = refusal("--config-dir", "team")
    assert error.value == "--config-dir team"
    assert "did you mean 'teams'" in error.fix


def test_a_team_file_that_is_not_yaml_is_named_with_its_line(tmp_path):
    (tmp_path / "mas").mkdir()
    (tmp_path / "mas" / "mine.yaml").write_text("mas: [\nb: 2\n")
    with pytest.raises(ConfigError, match=r"mas/mine\.yaml\", line 3"):
        compose(["--config-dir", str(tmp_path), "+mas=mine"])


def test_a_team_file_with_a_missing_base_is_named(tmp_path):
    (tmp_path / "mas").mkdir()
    (tmp_path / "mas" / "mine.yaml").write_text("# @package _global_\ndefaults: [solver_verifer, _self_]\n")
    with pytest.raises(ConfigError, match=r"In 'mas/mine': Could not load 'mas/solver_verifer'"):
        compose(["--config-dir", str(tmp_path), "+mas=mine"])
