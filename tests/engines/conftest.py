from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from async_tests import pytest_pyfunc_call as pytest_pyfunc_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), parameters=100_000)


@pytest.fixture
def model(model_path: Path) -> PreTrainedModel:
    return cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(model_path).eval())


@pytest.fixture
def make_batcher(model: PreTrainedModel) -> Callable[..., ContinuousBatcher]:
    def make(**settings: Any) -> ContinuousBatcher:
        return ContinuousBatcher(model, **{"max_length": 512, "decode": byte_tokenizer().decode, **settings})

    return make


@pytest.fixture
def on_the_cpu() -> Iterator[None]:
    from verl.plugin.platform import get_platform, set_platform

    from verl_mas.engines.platform.cpu import PlatformCPU

    before = get_platform()
    set_platform(PlatformCPU())
    yield
    set_platform(before)
