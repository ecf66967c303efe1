from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from verl.workers.config import RolloutConfig

from verl_mas.config.engine_tag import EngineTag

TAG = EngineTag("critic", rank_offset=16, time_sliced=True)


def view(**rollout):
    made = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    OmegaConf.set_struct(made, True)
    return made


@pytest.mark.parametrize("custom", [{}, {"custom": None}, {"custom": {"of_the_user": 1}}])
def test_a_written_tag_is_read_from_yaml_and_from_a_dataclass(custom):
    config = view(**custom)
    TAG.write(config)
    rollout = config.actor_rollout_ref.rollout
    assert EngineTag.of(rollout) == TAG
    assert EngineTag.of(RolloutConfig(name="vllm", custom=OmegaConf.to_container(rollout.custom))) == TAG


def test_keys_of_the_user_in_custom_are_kept():
    config = view(custom={"of_the_user": 1})
    TAG.write(config)
    assert config.actor_rollout_ref.rollout.custom.of_the_user == 1


def test_a_run_without_a_tag_is_one_policy_from_rank_0():
    assert EngineTag.of(view().actor_rollout_ref.rollout) == EngineTag("main", 0, False)
    assert EngineTag.of(RolloutConfig(name="vllm")) == EngineTag("main", 0, False)
