import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.run import validate
from verl_mas.checks.settings import VALUES, check_keys, check_overrides, check_validated, check_values, takes
from verl_mas.config.compose import compose
from verl_mas.config.values import problems
from verl_mas.config.verl_settings import section_at, verl_settings


@pytest.mark.parametrize("engine", ["dp", "megatron", "veomni", "torchtitan"])
def test_verls_own_configurations_have_no_unknown_key(engine):
    config = compose([f"model_engine={engine}"])
    assert [*check_keys(config), *check_values(config)] == []


def test_every_key_of_the_table_is_one_of_verl_and_takes_verls_own_value():
    verl = verl_settings()
    for path in VALUES:
        parent, _, name = path.rpartition(".")
        section = section_at(parent, verl)
        assert section is not None and section.knows(name), path
        default = section.yaml.get(name)
        if default is not None and not (isinstance(default, str) and ("${" in default or default == "???")):
            assert problems(takes(path), default, path) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"actor_rollout_ref__rollout__repetition_penalty": 1.1},  # a field of RolloutConfig that its YAML lacks
        {"actor_rollout_ref__rollout__engine_kwargs__vllm__any_argument": {"of": "vLLM"}},
        {"actor_rollout_ref__model__override_config__rope_theta": 1e6},
        {"reward__custom_reward_function__reward_kwargs": {"mine": 1}},
        {"ray_kwargs__ray_init__object_store_memory": 10**9, "ray_kwargs__ray_init___temp_dir": "/tmp/ray"},
        {"ray_kwargs__ray_init__runtime_env__pip": ["x"]},
        {"transfer_queue__backend__MooncakeStore__hard_pin": True},
        {"my_rate": 1e-5, "actor_rollout_ref__actor__optim__lr": "${my_rate}"},
        {"trainer__logger": "console", "data__train_files": ["a.parquet", "b.parquet"]},
        {"trainer__experiment_name": "größe_7b/lr 1e-6"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_verl_reads_or_passes_on_is_accepted(make, settings):
    config = make(**settings)
    assert [*check_keys(config), *check_values(config)] == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"actor_rollout_ref__rollout__name": "sglangg"}, "did you mean 'sglang'"),
        ({"actor_rollout_ref__rollout__multi_turn__format": "hermess"}, "did you mean 'hermes'"),
        ({"actor_rollout_ref__model__use_remove_padding": 16}, "is true or false"),
        ({"mas__policies": {"main": {"overrides": {"rollout": {"n": 0}}}}}, "overrides.rollout.n=0"),
        ({"mas__policies": {"main": {"overrides": {"modell": {}}}}}, "main.overrides.modell is not a setting"),
        ({"actor_rollout_ref__actor__optim__lr_scheduler_type": "WSD"}, 'lr_scheduler_type in ["constant", "cosine"]'),
        ({"actor_rollout_ref__rollout__mode": "sync"}, "Rollout mode 'sync' has been removed"),
    ],
)
def test_what_verl_does_not_take_is_refused_also_by_verl_itself(make, settings, says):
    run = ExaminedRun.of(make(**settings))
    (error,) = [*check_values(run.config), *check_overrides(run)] or check_validated(run)
    assert says in str(error)


def test_an_engine_that_a_plugin_of_the_run_registers_is_known(make, tmp_path, monkeypatch):
    monkeypatch.setattr("verl.workers.rollout.replica.RolloutReplicaRegistry._registry", {})
    plugin = tmp_path / "late.py"
    plugin.write_text(
        "from verl.workers.rollout.replica import RolloutReplicaRegistry\n"
        "RolloutReplicaRegistry.register('late', lambda: object)\n"
    )
    validate(make(mas__plugins=[str(plugin)], actor_rollout_ref__rollout__name="late"))
