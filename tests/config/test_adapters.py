import pytest
from omegaconf import OmegaConf

from verl_mas.config import load
from verl_mas.config.adapters import adapter_table, adapters, bases, host_policy, read_table, write_table
from verl_mas.config.placement import local_policies, policies_on
from verl_mas.config.run import Run

POLICIES = {
    "solver": {"adapter_of": "shared_base"},
    "verifier": {
        "adapter_of": "shared_base",
        "overrides": {"model": {"lora_rank": 4, "lora_alpha": 8}, "actor": {"optim": {"lr": 0.5}}},
    },
}


@pytest.fixture
def config(make):
    return make(
        mas__policies=POLICIES,
        actor_rollout_ref__model__lora_rank=16,
        actor_rollout_ref__model__lora_adapter_path="/warm",
    )


def test_a_base_that_is_not_declared_is_added_never_trained_and_alone_has_processes_and_engines(config):
    mas = load(config.mas)
    assert list(mas.policies) == ["solver", "verifier", "shared_base"]
    assert not mas.policies["shared_base"].is_trained
    assert (adapters(mas, "shared_base"), bases(mas)) == (["solver", "verifier"], ["shared_base"])
    assert [host_policy(mas, name) for name in mas.policies] == ["shared_base"] * 3
    assert local_policies(mas) == policies_on(mas, "shared") == ["shared_base"]


def test_an_adapter_has_the_overrides_the_pool_and_the_prefixes_of_its_base(make):
    model = {"lora_rank": 2, "path": "/m"}
    policies = {
        "base": {"trainable": False, "pool": "big", "shared_prefixes": True, "overrides": {"model": model}},
        "solver": {"adapter_of": "base", "shared_prefixes": False, "overrides": {"model": {"lora_rank": 4}}},
    }
    config = make(mas__policies=policies, mas__pools={"big": {"n_gpus_per_node": 2}})
    solver = load(config.mas).policies["solver"]
    assert (solver.pool, solver.overrides) == ("big", {"model": {"lora_rank": 4, "path": "/m"}})
    assert solver.shared_prefixes


def test_workers_and_engines_read_each_adapters_own_settings_with_the_loss_of_the_teams_weighting(config):
    mas = load(config.mas)
    mas.loss.weighting = "row"
    run = Run(config, mas)
    table, view = adapter_table(run, "shared_base"), run.view("shared_base").copy()
    assert {name: (one.rank, one.alpha, one.path) for name, one in table.items()} == {
        "solver": (16, 16.0, "/warm"),
        "verifier": (4, 8.0, "/warm"),
    }
    rates = [one.actor["optim"]["lr"] for one in table.values()]
    assert rates == [config.actor_rollout_ref.actor.optim.lr, 0.5] and table["solver"].name == "mas_solver"
    assert table["solver"].actor["loss_agg_mode"] == "seq-mean-token-mean"
    write_table(view, table)
    rollout = OmegaConf.to_container(view.actor_rollout_ref.rollout, resolve=True)
    assert read_table(rollout["custom"]) == table and rollout["custom"]["policy"] == "shared_base"
    # The base is prepared for the largest rank of its adapters, and loads no adapter at the start.
    assert (view.actor_rollout_ref.model.lora_rank, view.actor_rollout_ref.model.lora_adapter_path) == (16, None)
    assert read_table(None) == read_table({"policy": "main"}) == {}


def test_an_adapters_first_weights_depend_on_its_name_and_the_runs_seed_alone(config):
    def seeds():
        return {name: one.seed for name, one in adapter_table(Run.of(config), "shared_base").items()}

    before = seeds()
    assert before["solver"] != before["verifier"]
    config.mas.policies = {name: spec for name, spec in config.mas.policies.items() if name == "verifier"}
    assert seeds() == {"verifier": before["verifier"]}
    OmegaConf.update(config, "actor_rollout_ref.actor.fsdp_config.seed", 7)
    assert seeds() != {"verifier": before["verifier"]}


@pytest.mark.parametrize(
    ("solver", "verifier", "base"),
    [
        (["q_proj", "v_proj"], ["down_proj", "q_proj"], ["down_proj", "q_proj", "v_proj"]),
        (["q_proj"], "all-linear", "all-linear"),
    ],
)
def test_adapters_are_on_their_own_modules_and_the_base_is_prepared_for_all(config, solver, verifier, base):
    for name, wanted in (("solver", solver), ("verifier", verifier)):
        OmegaConf.update(config, f"mas.policies.{name}.overrides.model.target_modules", wanted, force_add=True)
    mas = load(config.mas)
    table = adapter_table(Run(config, mas), "shared_base")
    assert [one.target_modules for one in table.values()] == [solver, verifier]
    view = Run(config, mas).view("shared_base").copy()
    write_table(view, table)
    assert view.actor_rollout_ref.model.target_modules == base
