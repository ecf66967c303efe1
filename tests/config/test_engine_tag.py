from omegaconf import OmegaConf
from verl.workers.config import RolloutConfig

from verl_mas.config.engine_tag import EngineTag

TAG = EngineTag("critic", rank_offset=16, time_sliced=True)


def view(**rollout):
    made = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    OmegaConf.set_struct(made, True)
    return made


def test_a_written_tag_is_read_from_yaml_and_from_a_dataclass_and_keys_of_the_user_are_kept():
    for custom in ({}, {"custom": None}, {"custom": {"of_the_user": 1}}):
        config = view(**custom)
        TAG.write(config)
        rollout = config.actor_rollout_ref.rollout
        assert EngineTag.of(rollout) == TAG
        assert EngineTag.of(RolloutConfig(name="vllm", custom=OmegaConf.to_container(rollout.custom))) == TAG
    assert rollout.custom.of_the_user == 1
    # A run without a tag is one policy from rank 0.
    assert EngineTag.of({}) == EngineTag.of(RolloutConfig(name="vllm")) == EngineTag("main", 0, False)
