"""Fakes of verl's replica and adapter classes for SGLang and vLLM, so that neither engine has to be installed."""

import asyncio
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf

from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.facts import facts_of

ENGINES = ["sglang", "vllm"]


class StockServer:
    """The class that an engine's actor runs."""


class StockReplica:
    """Uses a rank like verl's RolloutReplica."""

    def __init__(self, replica_rank, config, model_config, gpus_per_node=8, name_suffix=""):
        self.server_class = ray.remote(StockServer)
        self.replica_rank, self.world_size, self.gpus_per_node = replica_rank, config.world_size, gpus_per_node

    async def init_hybrid(self, worker_group):
        first = self.world_size * self.replica_rank
        self.workers = worker_group.workers[first : first + self.world_size]
        self.name = f"server_{self.replica_rank}_0"
        self.first_gpu = self.replica_rank * self.world_size % self.gpus_per_node


class StockAdapter:
    """Uses a rank like verl's ServerAdapter."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        self.replica_rank = replica_rank
        self.looks_up = f"server_{replica_rank}_0"


def config(offset: int | None, tensor: int = 2):
    """Compose a configuration like verl's, which has no `custom` block unless it is added."""
    custom = {} if offset is None else {"custom": asdict(EngineTag("a", offset))}
    parallel = {"tensor_model_parallel_size": tensor, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
    composed = OmegaConf.create({"world_size": tensor, **parallel, **custom})
    OmegaConf.set_struct(composed, True)
    return composed


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    """A replica class and an adapter class as verl would get them."""
    # The CPU platform would replace verl's vLLM.
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    name = request.param
    facts = facts_of(name)
    module = ModuleType(facts.stock_adapter)
    module.ServerAdapter = StockAdapter
    monkeypatch.setitem(sys.modules, facts.stock_adapter, module)
    replicas = {"sglang": lambda: StockReplica, "vllm": lambda: StockReplica}
    registry = SimpleNamespace(_registry=replicas, register=replicas.__setitem__)
    adapters: dict = {}
    facts.register_replica(SimpleNamespace(RolloutReplicaRegistry=registry))
    facts.register_adapter(SimpleNamespace(_ROLLOUT_REGISTRY=adapters))
    module_name, attribute = adapters[name, "async"].rsplit(".", 1)
    return replicas[name](), getattr(sys.modules[module_name], attribute)


def start(replica_class, offset, world=4, tensor=2):
    workers = [f"worker{i}" for i in range(world)]
    replicas = [replica_class(rank, config(offset, tensor), None, gpus_per_node=4) for rank in range(world // tensor)]
    for replica in replicas:
        asyncio.run(replica.init_hybrid(SimpleNamespace(workers=workers)))
    return replicas


def test_each_adapter_finds_its_own_policys_server(engine, monkeypatch):
    replica_class, adapter_class = engine
    names = {}
    for policy, offset in (("a", 0), ("b", 4), ("c", 8)):
        servers = {replica.name: replica.workers for replica in start(replica_class, offset)}
        for rank in range(4):
            monkeypatch.setenv("RANK", str(rank))
            found = adapter_class(config(offset), None, None).looks_up
            assert f"worker{rank}" in servers[found]
        names[policy] = set(servers)
    assert not names["a"] & names["b"] and not names["b"] & names["c"]


def test_every_policy_is_on_the_same_gpus(engine):
    replica_class, _ = engine
    gpus = [[replica.first_gpu for replica in start(replica_class, offset)] for offset in (0, 4, 8)]
    assert gpus[0] == gpus[1] == gpus[2] == [0, 2]


def test_a_run_with_one_policy_sees_verls_own_ranks(engine, monkeypatch):
    replica_class, adapter_class = engine
    assert [replica.replica_rank for replica in start(replica_class, None)] == [0, 1]
    monkeypatch.setenv("RANK", "3")
    assert adapter_class(config(None), None, None).replica_rank == 1


def test_a_rank_that_verl_gives_is_kept(engine):
    _, adapter_class = engine
    assert adapter_class(config(4), None, None, replica_rank=5).replica_rank == 5


@pytest.mark.parametrize("offset", [None, 0])
def test_the_servers_of_a_team_are_ours_and_those_of_a_run_without_one_verls(engine, offset):
    replica_class, _ = engine
    server = replica_class(0, config(offset), None).server_class.__ray_metadata__.modified_class
    assert issubclass(server, StockServer) and hasattr(server, "pause") is (offset is not None)
