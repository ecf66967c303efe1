from omegaconf import OmegaConf

from verl_mas.config import load
from verl_mas.config.merge import materialize_interpolations, own_section
from verl_mas.config.run import Run


def test_a_view_is_the_section_with_the_policys_overrides(make):
    config = make(mas__policies={"small": {"overrides": {"actor": {"optim": {"lr": 0.5}}, "model": {"path": "/s"}}}})
    view = Run.of(config).view("small").config
    assert view.actor_rollout_ref.actor.optim.lr == 0.5
    assert view.actor_rollout_ref.model.path == "/s"
    assert view.actor_rollout_ref.rollout.custom.policy == "small"
    assert config.actor_rollout_ref.actor.optim.lr != 0.5
    assert config.actor_rollout_ref.rollout.get("custom") is None


def test_interpolated_settings_follow_an_override_after_verl_resolved_the_configuration(make):
    config = make(mas__policies={"a": {"overrides": {"actor": {"strategy": "fsdp", "use_dynamic_bsz": False}}}})
    added = materialize_interpolations(config, load(config.mas))
    assert any("ref.strategy=fsdp" in item for item in added)
    OmegaConf.resolve(config)
    view = Run.of(config).view("a").config
    assert view.actor_rollout_ref.ref.strategy == "fsdp"
    assert config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is True
    assert view.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is False


def test_optimiser_steps_are_verls_unless_the_team_or_the_policy_sets_them(two):
    config = two(data__train_batch_size=32)
    assert Run.of(config).view("a").updates_per_step == 4
    OmegaConf.update(config, "mas.updates_per_step", 2)
    assert Run.of(config).view("a").updates_per_step == 2
    OmegaConf.update(config, "mas.policies.b.updates_per_step", 3, force_add=True)
    assert Run.of(config).view("b").updates_per_step == 3


def test_what_is_set_for_a_base_that_is_left_out_declares_it_as_frozen(make):
    config = make(mas__policies={"a": {"adapter_of": "main"}, "b": {}})
    assert own_section(config, "b") == "++mas.policies.b.overrides"
    assert own_section(config, "main") == "++mas.policies.main.trainable=false ++mas.policies.main.overrides"
    config.mas.policies = {"main": {"trainable": False}, "a": {"adapter_of": "main"}}
    assert own_section(config, "main") == "++mas.policies.main.overrides"
    # A team that declares no policy has one policy, `main`, which is trained.
    assert own_section(make(), "main") == "++mas.policies.main.overrides"


def test_a_trained_policy_has_a_rollout_correction_of_its_own_and_no_other_has(make):
    own = {"rollout_correction": {"rollout_is": "sequence"}}
    config = make(mas__policies={"a": own, "b": {}, "f": {"trainable": False, **own}})
    run = Run.of(config)
    views = {name: run.view(name).config.algorithm.rollout_correction for name in run.mas.policies}
    assert {name: view.rollout_is for name, view in views.items()} == {"a": "sequence", "b": None, "f": None}
    assert views["a"].rollout_is_threshold == config.algorithm.rollout_correction.rollout_is_threshold
    assert config.algorithm.rollout_correction.rollout_is is None
