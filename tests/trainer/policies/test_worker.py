"""Counting the tensors of a push, with verl's own training engine on FSDP1 and FSDP2, in one process on the CPU."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import fsdp_utils
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

from verl_mas.errors import UpdateFailed
from verl_mas.trainer.policies.worker import PolicyWorker, counting

SIZE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
OF_ADAPTER, OF_BASE = 28, 21
STRATEGIES = pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def split(strategy: str, *, lora: bool = True) -> torch.nn.Module:
    """Wrap a model in the same way as verl's engine."""
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**SIZE, **HEADS))
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    if strategy == "fsdp":
        policy = fsdp_utils.get_fsdp_wrap_policy(model, is_lora=lora)
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    fsdp_utils.apply_fsdp2(model, {"mesh": init_device_mesh("cpu", (1,))}, {})
    return model


class Engine(transformer_impl.FSDPEngineWithLMHead):
    """verl's engine, with only the attributes that it needs to collect weights."""

    def __init__(self, module: torch.nn.Module, *, merge: bool = False):
        self.module = module
        self._uses_fsdp2_cpu_offload_policy, self._is_offload_param, self._qat_enabled = True, False, False
        self.model_config = SimpleNamespace(lora={"merge": merge}, hf_config=LlamaConfig(**SIZE, **HEADS))


def push(engine: Engine, **kwargs: bool) -> int:
    """Return the number of tensors that are sent."""
    weights, _ = counting(engine.get_per_tensor_param, engine.module, "solver")(**kwargs)
    return len(dict(weights))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    for name in ("get_device_id", "log_gpu_memory_usage"):
        monkeypatch.setattr(transformer_impl, name, lambda *args, **kwargs: "cpu")


def by_module(model, state_dict=None, adapter_name="default"):
    """Find the tensors of an adapter like PEFT 0.21."""
    state_dict = model.state_dict() if state_dict is None else state_dict
    layers = [name for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    prefixes = tuple(f"{name.removeprefix('_fsdp_wrapped_module.')}.lora_" for name in layers)
    return {key.replace(".default", ""): state_dict[key] for key in state_dict if key.startswith(prefixes)}


@pytest.mark.parametrize(("strategy", "layered"), [("fsdp", False), ("fsdp2", False), ("fsdp2", True)])
def test_with_the_pinned_peft_verl_collects_every_tensor_of_an_adapter(strategy, layered):
    module = split(strategy)
    collected = fsdp_utils.collect_lora_params(module, layered_summon=layered, base_sync_done=True)
    assert len(collected) == OF_ADAPTER == push(Engine(module), layered_summon=layered, base_sync_done=True)
    # verl collects the whole adapter if it finds no layers.
    assert not layered or collected.keys() == fsdp_utils.layered_summon_lora_params(module).keys()


@STRATEGIES
def test_every_kind_of_push_is_counted(strategy):
    module = split(strategy)
    assert push(Engine(split(strategy, lora=False))) == OF_BASE, "whole weights, through a checkpoint engine"
    assert push(Engine(split(strategy, lora=False)), base_sync_done=True) == OF_BASE, "to engines beside the worker"
    assert push(Engine(module), base_sync_done=False) == OF_BASE, "the base of an adapter"
    assert push(Engine(module, merge=True), base_sync_done=True) == OF_BASE, "an adapter in its base"


def test_an_adapter_whose_tensors_verl_does_not_find_is_an_error(monkeypatch):
    for place in ("verl.utils.fsdp_utils", "peft.utils.save_and_load"):
        monkeypatch.setattr(f"{place}.get_peft_model_state_dict", by_module)
    with pytest.raises(UpdateFailed, match="0 of 28 tensors of policy solver were sent"):
        push(Engine(split("fsdp")), base_sync_done=True)


def test_one_missing_tensor_is_an_error_and_those_before_it_are_sent():
    module, sent = split("fsdp2", lora=False), []
    incomplete = list(module.state_dict().items())[1:]
    weights, _ = counting(lambda **kwargs: (incomplete, None), module, "solver")()
    with pytest.raises(UpdateFailed, match="20 of 21 tensors"):
        sent.extend(weights)
    assert len(sent) == OF_BASE - 1


def with_another_bit(data: bytes) -> bytes:
    place = data.index(bytes(range(1, 99)))
    return data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :]


@pytest.mark.parametrize("change", [with_another_bit, lambda data: data[:-9]])
def test_a_changed_file_of_the_rank_is_not_loaded(tmp_path, monkeypatch, change):
    loaded = []
    monkeypatch.setattr(ActorRolloutRefWorker, "load_checkpoint", lambda self, *given: loaded.append(given))
    worker = object.__new__(PolicyWorker)
    vars(worker).update(_rank=0)
    for rank in (0, 1):
        torch.save(torch.arange(100, dtype=torch.uint8), tmp_path / f"model_world_size_2_rank_{rank}.pt")
    worker.load_checkpoint(str(tmp_path))
    assert len(loaded) == 1
    other, own = (tmp_path / f"model_world_size_2_rank_{rank}.pt" for rank in (1, 0))
    other.write_bytes(change(other.read_bytes()))
    worker.load_checkpoint(str(tmp_path))
    own.write_bytes(change(own.read_bytes()))
    with pytest.raises(ValueError, match=r"checksums of model_world_size_2_rank_0.pt are wrong"):
        worker.load_checkpoint(str(tmp_path))
    assert len(loaded) == 2
