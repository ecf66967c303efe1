from __future__ import annotations

import pytest

from verl_mas.checks.trainer import REQUIRED, check_settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trainer__v1__trainer_mode": "sync"}, "trainer.v1.trainer_mode=sync"),
        ({"trainer__use_v1": False}, "V1 trainer"),
        ({"algorithm__adv_estimator": "gae"}, "a critic would need one value model per policy"),
        ({"critic__enable": True}, "a critic would need one value model per policy"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_loss=True"),
        ({"algorithm__norm_adv_by_std_in_grpo": False}, "++mas.advantage.scale=none"),
        ({"reward__reward_model__enable": True}, "while the engines are awake"),
        ({"mas__policies": {"a": {"trainable": False}, "b": {"trainable": False}}}, "no policy is trainable"),
    ],
)
def test_a_setting_that_a_team_cannot_be_trained_with_is_refused(refused, settings, says):
    (error,) = refused(**settings)
    assert says in str(error) and error.fix


@pytest.mark.parametrize("required", REQUIRED, ids=lambda required: required.key)
def test_every_required_setting_is_one_of_verl_and_its_fix_makes_it_pass(make, required):
    key = required.key.replace(".", "__")
    wrong = "sync" if isinstance(required.value, str) else not required.value
    assert [error.value for error in check_settings(make(**{key: wrong}))] == [f"{required.key}={wrong}"]
    assert list(check_settings(make(**{key: required.value}))) == []
