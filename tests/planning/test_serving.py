"""Memory of an engine: the two meanings of its fraction, and the memory that stays when it sleeps."""

from dataclasses import replace

import pytest
from small_model import MODEL, POLICY, SEEING

from verl_mas.planning import serving
from verl_mas.planning.hardware import GIB

CARD, FREE = 80 * GIB, 70 * GIB
VLLM, SGLANG = POLICY, replace(POLICY, engine="sglang")


def test_vllm_takes_its_fraction_of_the_card_and_sglang_of_what_is_free():
    held = serving.awake(VLLM, serving.kv_cache(VLLM, CARD, FREE))
    assert sum(held.values()) == pytest.approx(0.5 * CARD)
    held = serving.awake(SGLANG, serving.kv_cache(SGLANG, CARD, FREE))
    assert held["weights"] + held["KV cache"] == pytest.approx(0.5 * FREE)
    assert sum(held.values()) - 0.5 * FREE == pytest.approx(2.5 * GIB), "context and graphs come on top"
    embedded = replace(POLICY, engine="transformers", fraction=None, sequences=10, row=100)
    assert serving.kv_cache(embedded, CARD, FREE) == 1000 * serving.kv_per_token(embedded), "its longest batch"


def test_an_engine_tries_the_largest_image_when_it_starts():
    """Computed by hand: 16,384 tokens of four patches each, in one layer of hidden size 32. vLLM takes this memory out
    of its fraction."""
    image = 2 * 4 * 16_384 * (8 * 32 + 3 * 16)
    caches = [serving.kv_cache(policy, CARD, FREE) for policy in (VLLM, replace(VLLM, model=SEEING))]
    assert caches[0] - caches[1] == image == serving.awake(replace(SGLANG, model=SEEING), 0)["images"]
    assert serving.asleep(replace(VLLM, model=SEEING), 0) == serving.asleep(VLLM, 0)


def test_weights_are_divided_by_tensor_and_pipeline_parallel_ranks_and_copied_by_data_parallel_ones():
    wide = replace(VLLM, tensor_parallel=2, pipeline_parallel=2, data_parallel=3)
    assert (wide.replica, serving.weights(wide), serving.kv_per_token(wide)) == (
        12,
        MODEL.served / 4,
        MODEL.kv_bytes() / 4,
    )
    slots = replace(VLLM, serves_adapters=True, ranks=2 * 8)
    assert serving.weights(slots) - serving.weights(VLLM) == 2 * 16 * MODEL.adapted()


def test_asleep_the_context_and_the_graphs_stay_and_what_an_engine_does_not_free():
    assert sum(serving.asleep(VLLM, 0).values()) == pytest.approx(2.5 * GIB)
    assert sum(serving.asleep(replace(VLLM, eager=True), 0).values()) == pytest.approx(1.5 * GIB)
    assert serving.asleep(replace(VLLM, sleeps=False), 30 * GIB)["KV cache"] == 30 * GIB
    for engine, weights in ((SGLANG, MODEL.served), (VLLM, 0)):
        assert serving.asleep(replace(engine, serves_adapters=True), 0)["weights"] == weights


@pytest.mark.parametrize(
    ("engine", "frozen", "phases", "copies"),
    [
        ("sglang", False, False, 1),
        ("vllm", False, False, 0),
        ("vllm", False, True, 1),
        ("vllm", True, False, 1),
        ("transformers", True, False, 0),
    ],
)
def test_sglang_always_has_a_copy_in_host_memory_and_vllm_where_it_keeps_its_weights(engine, frozen, phases, copies):
    fraction = None if engine == "transformers" else 0.5
    policy = replace(POLICY, engine=engine, fraction=fraction, trains=not frozen)
    assert serving.host_copy(policy, phases=phases) == copies * MODEL.served


def test_weights_arrive_in_a_bucket_beside_the_largest_tensor_in_float32():
    held = serving.syncing(VLLM)
    assert (held["bucket"], held["gathered tensor"]) == (2 * GIB, 4 * MODEL.largest)
    assert "bucket" not in serving.syncing(replace(VLLM, trains=False))  # its engine reads the checkpoint
