import asyncio

import numpy as np
import pytest
import torch

from verl_mas.engines.transformers.weights import WeightUpdate, pack
from verl_mas.errors import EngineLost


def other(model, scale=1.5):
    return {name: tensor * scale for name, tensor in model.state_dict().items()}


def packed(weights, bucket_bytes=1 << 30):
    async def collected():
        return [bucket async for bucket in pack(weights.items(), bucket_bytes)]

    return asyncio.run(collected())


def send(model, weights, bucket_bytes=1 << 30):
    update = WeightUpdate(model)
    buckets = packed(weights, bucket_bytes)
    for bucket in buckets:
        update.load(bucket)
    update.finish()
    return buckets


def test_weights_arrive_exactly_bucket_by_bucket(model):
    weights = other(model)
    assert len(send(model, weights, bucket_bytes=50_000)) > 3
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dropped", ["lm_head.weight", "model.embed_tokens.weight"])
def test_one_name_of_a_tied_weight_is_enough_and_the_tie_holds(model, dropped):
    weights = other(model)
    expected = weights.pop(dropped)
    send(model, weights)
    assert torch.equal(model.lm_head.weight, expected)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_bfloat16_weights_in_rays_read_only_arrays_arrive_in_a_float32_engine_without_a_warning(model, recwarn):
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in other(model).items()}
    [bucket] = packed(weights)
    update = WeightUpdate(model)
    update.load([packed._replace(data=np.frombuffer(packed.data.tobytes(), np.uint8)) for packed in bucket])
    update.finish()
    assert all(torch.equal(tensor, weights[name].float()) for name, tensor in model.state_dict().items())
    assert not recwarn.list


def test_a_missing_an_unknown_and_a_misshapen_weight_are_named(model):
    weights = other(model)
    del weights["model.norm.weight"]
    for wrong, says in (
        (weights, r"sent no model\.norm\.weight"),
        ({"nonsense": torch.zeros(1)}, "weight nonsense"),
        ({"model.norm.weight": torch.zeros(1)}, r"weight model\.norm\.weight \(1,\)"),
    ):
        with pytest.raises(EngineLost, match=says):
            send(model, wrong)
