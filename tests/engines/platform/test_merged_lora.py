"""Merged weights of a LoRA policy, as they are sent to its engine."""

import copy
from collections.abc import Iterator

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from verl_mas.engines.platform.fsdp import CpuEngineWithLMHead


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_merged_weights_are_sent_in_float32_and_the_base_is_as_before(one_process):
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape))
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    expected = copy.deepcopy(model).merge_and_unload().state_dict()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = object.__new__(CpuEngineWithLMHead)
    for layer in base.model.layers:
        fully_shard(layer)
    engine.module = fully_shard(model)
    sent = dict(engine._merged_lora_per_tensor_param())
    assert sent.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in sent.items())
    assert all(torch.equal(weight.full_tensor(), before[name]) for name, weight in model.state_dict().items())
