from collections.abc import Iterator

from verl_mas.config.verl_settings import SettingsSection, verl_settings


def sections(section: SettingsSection) -> Iterator[SettingsSection]:
    yield section
    for key in section.keys:
        if below := section.below(key):
            yield from sections(below)


def test_most_sections_of_verl_have_the_types_of_a_dataclass():
    every = list(sections(verl_settings()))
    assert len([section for section in every if section.hints]) > 50
    actor = next(section for section in every if section.path == "actor_rollout_ref.actor")
    assert actor.hints["ppo_mini_batch_size"] is int and actor.knows("ppo_mini_batch_size")
    assert not actor.knows("ppo_mini_batchsize")
