from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from verl_mas import engines
from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.facts import ENGINES, EngineFacts, assign_ports, facts_of, known_engines


@pytest.fixture
def view():
    def view(engine: str, offset: int = 0, **options):
        rollout = {"name": engine, "engine_kwargs": {engine: options}, "custom": None}
        made = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        OmegaConf.set_struct(made, True)
        EngineTag("a", offset).write(made)
        assign_ports(made)
        return made.actor_rollout_ref.rollout

    return view


@pytest.fixture
def mine(monkeypatch):
    """An engine of somebody else's."""
    seen = []
    monkeypatch.setattr(ENGINES, "_entries", {**ENGINES._entries})
    ENGINES.register("mine")(EngineFacts(pausable=object, register_replica=seen.append, register_adapter=seen.append))
    return seen


def test_every_shipped_engine_is_found_by_being_in_the_folder():
    assert set(known_engines()) == {"sglang", "transformers", "trtllm", "vllm"}


def test_an_engine_that_registers_is_told_to_verl_with_the_others(mine, monkeypatch):
    for name in list(ENGINES):
        if name != "mine":
            monkeypatch.setitem(ENGINES._entries, name, EngineFacts())
    replica, base = ModuleType("replica"), ModuleType("base")
    engines.register_replicas(replica)
    engines.register_adapters(base)
    assert mine == [replica, base]


def test_what_an_engine_says_of_itself_decides(mine):
    assert facts_of("mine").pausable is object
    assert facts_of("vllm").gpu_fraction and not facts_of("transformers").gpu_fraction


def test_an_engine_that_only_verl_knows_has_no_special_needs():
    assert facts_of("of a later verl") == EngineFacts()


def test_policies_on_sglang_look_for_ports_in_ranges_of_their_own(view):
    assert [view("sglang", offset).engine_kwargs.sglang.port for offset in (0, 4)] == [30000, 30400]


def test_a_port_that_is_given_stays(view):
    assert view("sglang", 4, port=1).engine_kwargs.sglang.port == 1


def test_an_engine_without_a_base_port_gets_none(view):
    assert view("vllm", 4).engine_kwargs.vllm == {}


def test_facts_load_neither_an_engine_nor_ray_nor_torch():
    program = (
        "import sys; from verl_mas.engines.facts import known_engines; known_engines()\n"
        "assert not {'ray', 'torch', 'vllm', 'sglang', 'transformers', 'verl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
