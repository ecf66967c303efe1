from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM

from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.warmup.tiny_model import byte_tokenizer, tiny_model


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"), parameters=100_000)


@pytest.fixture
def model(model_path):
    return AutoModelForCausalLM.from_pretrained(model_path).eval()


@pytest.fixture
def make_batcher(model):
    def make(**settings):
        return ContinuousBatcher(model, **{"max_length": 512, "decode": byte_tokenizer().decode, **settings})

    return make
