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


def test_the_folder_of_verls_configuration_is_taken_as_hydra_takes_it(tmp_path):
    """`--config-path=./config` is in verl's own scripts; it is relative to the file of verl's entry point."""
    assert compose(["--config-path=./config", "--config-name=ppo_trainer"]) == compose([])
    (tmp_path / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: [pkg://verl.trainer.config]}"
    )
    with pytest.raises(ConfigError, match="a relative path starts in the folder of verl's entry point"):
        compose([f"--config-path={tmp_path}/other", "--config-name=mine"])
    own = compose([f"--config-path={tmp_path}", "--config-name=mine", "data.train_batch_size=8"])
    assert own.data.train_batch_size == 8 and own.algorithm.adv_estimator == "gae"
