import ast
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from verl_mas.config.registry import Registry
from verl_mas.engines import facts
from verl_mas.engines.facts import HIGHEST_PORT, Contract, EngineFacts, facts_of, register_engine, set_options


@pytest.fixture
def view():
    def view(engine: str, index: int = 0, shared: bool = False, **options):
        rollout = {"name": engine, "engine_kwargs": {engine: options}}
        made = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        OmegaConf.set_struct(made, True)
        set_options(made, index, shared)
        return made.actor_rollout_ref.rollout

    return view


@pytest.fixture
def registry(monkeypatch):
    """A registry of the test's own; verl's lists stay as they are."""
    monkeypatch.setattr(facts, "ENGINES", Registry("engine"))
    monkeypatch.setattr(facts, "_filled", {})


@pytest.fixture
def verls():
    """verl's two lists, as its modules hold them."""
    replicas, adapters = {}, {}
    replica = SimpleNamespace(RolloutReplicaRegistry=SimpleNamespace(register=replicas.__setitem__))
    return replica, SimpleNamespace(_ROLLOUT_REGISTRY=adapters), replicas, adapters


@pytest.mark.parametrize("late", [False, True])
def test_an_engine_is_registered_with_verl_with_the_others_or_at_once(registry, verls, late):
    replica, base, replicas, adapters = verls

    def verl_imports():
        facts.register_replicas(replica)
        facts.register_adapters(base)

    if late:
        verl_imports()
    register_engine("mine", replica="decimal.Decimal", adapter="my.Adapter")
    if not late:
        verl_imports()
    assert replicas["mine"]() is Decimal
    assert adapters == {("mine", "async"): "my.Adapter"}


def test_an_engines_own_facts_are_used_and_the_defaults_of_one_that_only_verl_knows(registry):
    contract = Contract("not_installed", ("1.0", "1.0"), {"adapters": "1.2"})
    register_engine("mine", replica="a.B", adapter="a.C", facts=EngineFacts(gpu_fraction=True, contract=contract))
    assert facts_of("mine").gpu_fraction
    assert "from 1.2 on" in facts_of("mine").lacks("adapters") and not facts_of("mine").lacks("images")
    assert facts_of("mine").server_mixin is None
    assert facts_of("of a later verl") == EngineFacts()


def test_policies_on_sglang_look_for_ports_in_ranges_of_their_own(view):
    ports = [view("sglang", index).engine_kwargs.sglang.port for index in range(60)]
    assert ports[:3] == [30000, 30500, 31000]
    assert max(ports) <= HIGHEST_PORT
    assert view("sglang", 4, port=1).engine_kwargs.sglang.port == 1
    assert view("vllm", 4).engine_kwargs.vllm == {}


def test_an_sglang_engine_that_shares_its_gpu_leaves_a_core_to_the_others_while_it_is_idle(view):
    assert [view("sglang", 0, shared).engine_kwargs.sglang.get("sleep_on_idle") for shared in (0, 1)] == [None, True]
    assert view("sglang", 0, True, sleep_on_idle=False).engine_kwargs.sglang.sleep_on_idle is False
    assert view("vllm", 0, True).engine_kwargs.vllm == {}


def test_no_other_module_asks_for_the_name_of_an_engine_on_gpus():
    """Facts about an engine are in its file."""
    package = Path(facts.__file__).parents[1]
    others = [file for file in package.rglob("*.py") if file.relative_to(package).parts[0] != "engines"]
    nodes = [(file, node) for file in others for node in ast.walk(ast.parse(file.read_text()))]
    names = {"sglang", "trtllm", "vllm"}
    assert [file for file, node in nodes if isinstance(node, ast.Constant) and node.value in names] == []


def test_every_shipped_engine_is_found_and_facts_load_neither_an_engine_nor_ray_nor_torch():
    program = (
        "import sys; from verl_mas.engines.facts import ENGINES; [ENGINES[name] for name in ENGINES]\n"
        "assert {'sglang', 'transformers', 'trtllm', 'vllm'} <= set(ENGINES)\n"
        "assert not {'ray', 'torch', 'vllm', 'sglang', 'transformers', 'verl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
