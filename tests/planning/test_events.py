"""Memory of a GPU with several policies at each moment."""

from dataclasses import replace

import pytest
from small_model import MODEL, POLICY

from verl_mas.planning import events
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, START, SYNC, UPDATE, Pool
from verl_mas.planning.hardware import GIB

CARD = 80 * GIB
OFFLOADED = {"param_offload": True, "optimizer_offload": True}
HELD = replace(POLICY, name="a", fraction=0.3, row=100, max_model_len=200)
A = replace(HELD, **OFFLOADED)
B = replace(A, name="b")
FROZEN = replace(A, name="c", trains=False)


def totals(pool: Pool, phase: str) -> list[float]:
    return [event.total / GIB for event in pool.events() if event.phase == phase]


APART = replace(HELD, pool="left", serving_pool="serve")
LEFT, SERVED = (APART.at(pool) for pool in ("left", "serve"))
B_SERVED, RIGHT_SERVED = replace(SERVED, name="b"), replace(SERVED, name="b", pool="right")


# The engine of a policy has 24 GiB awake, and 2.5 GiB of context and graphs asleep. A trainer has a context of 1 GiB. A
# weight sync has a bucket of 2 GiB.
@pytest.mark.parametrize(
    ("policies", "phases", "moment", "gib"),
    [
        ([A, B], False, ROLLOUT, [24 + 24 + 2]),
        ([A, B], True, ROLLOUT, [24 + 2.5 + 2] * 2),
        ([A], True, ROLLOUT, [24 + 1]),
        ([A, FROZEN], False, ROLLOUT, [24 + 24 + 1]),
        # Policies start in turn, next to the sleeping engines of the policies that have started.
        ([A, B], False, START, [25, 25 + 2.5 + 1]),
        # An engine that has received its weights stays awake, unless engines are served in phases.
        ([A, B], False, SYNC, [1 + 2.5 + 2 + 1 + 2.5, 1 + 2.5 + 2 + 1 + 24]),
        ([A, B], True, SYNC, [1 + 2.5 + 2 + 1 + 2.5] * 2),
        ([A, B], False, UPDATE, [1 + 2.5 + 1 + 2.5] * 2),
        ([A, FROZEN], False, UPDATE, [1 + 2.5 + 2.5]),
        # A snapshot gets its weights in a bucket while its engine is awake.
        ([A, FROZEN], False, SYNC, [1 + 2.5 + 2 + 2.5, 2.5 + 1 + 24]),
        ([A, replace(FROZEN, snapshot=True)], False, SYNC, [1 + 2.5 + 2 + 2.5, 24 + 2 + 1 + 24]),
        # A pool that only trains has no engine, and sends from two buckets. A pool that only serves has no trainer.
        ([LEFT], False, UPDATE, [1]),
        ([LEFT], False, SYNC, [1 + 2 * 2]),
        ([SERVED], False, ROLLOUT, [24]),
        ([SERVED], False, UPDATE, []),
        # Weights from another pool arrive in two buckets, and a third bucket passes them on, while other engines serve.
        ([SERVED], False, SYNC, [2.5 + 3 * 2]),
        ([SERVED, B_SERVED], False, SYNC, [2.5 + 3 * 2 + 24] * 2),
        # Pools send at the same time, each one policy after another.
        ([SERVED, RIGHT_SERVED], False, SYNC, [2.5 + 3 * 2 + 24 + 3 * 2] * 2),
        ([SERVED, RIGHT_SERVED, replace(RIGHT_SERVED, name="d")], False, SYNC, [2.5 + 3 * 2 + 2 * 24 + 3 * 2] * 3),
    ],
)
def test_a_moment_takes_this_memory(policies, phases, moment, gib):
    assert totals(Pool(policies, CARD, phases=phases), moment) == pytest.approx(gib, abs=0.01)


def test_what_is_free_for_sglang_is_what_those_before_leave():
    a, b = (replace(p, engine="sglang") for p in (A, B))
    pool = Pool([a, b], CARD)
    assert pool.caches["a"] - pool.caches["b"] == pytest.approx(0.3 * 3.5 * GIB)


def test_without_offload_the_others_stay_on_the_gpu():
    held = replace(HELD, name="b")
    moved, kept = (totals(Pool([A, other], CARD), LOG_PROBS)[0] for other in (B, held))
    assert (kept - moved) * GIB == pytest.approx(12 * MODEL.parameters / 4)


def test_lora_and_fsdp1_load_their_parameters_for_the_sync():
    for policy in (replace(A, adapter=8000), replace(A, fsdp2=False)):
        assert events.staged(policy) == {"parameters": 4 * MODEL.parameters / 4}
    assert events.staged(A) == {}


def test_the_host_is_fullest_while_a_tied_model_is_read_or_once_training_has_begun():
    early = Pool([A], CARD).host(4)
    assert early == {"a model being loaded": 4 * 4 * MODEL.parameters}
    late = Pool([A, B, replace(A, name="d")], CARD).host(4)
    assert set(late) == {"parameters", "Adam"}
    sized = replace(A, cache_bytes=1 << 30)
    together = Pool([sized, replace(sized, name="d")], CARD)
    assert together.host(4) == {"models being loaded": 2 * 4 * 4 * MODEL.parameters}
    assert together.caches == {"a": 1 << 30, "d": 1 << 30}, "of its options, whatever the fraction"


def test_a_critic_is_loaded_before_its_policy_and_then_waits_on_the_host_if_it_is_offloaded():
    critic = replace(A, optimizer_offload=False)
    shards = 4 * (65_536 + 4 * 16_384)  # tensors of 64,000 and 9,000 bytes, each rounded up to a power of two
    both = Pool([replace(A, critic=critic)], CARD).host(4)
    assert both == {"a model being loaded": 4 * 4 * MODEL.parameters, "critic": shards}
    large = replace(HELD, model=replace(MODEL, tensors=(10**9,), tied=False))
    assert Pool([replace(A, critic=large)], CARD).host(4) == {"a model being loaded": 4 * 10**9}
    served = replace(large, pool="left", serving_pool="serve", critic=large).at("serve")
    assert Pool([served], CARD).host(4) == {}, "a pool that only serves has no critic"


def test_sglang_has_a_copy_per_replica_on_the_node():
    wide = replace(A, engine="sglang", tensor_parallel=2)
    untied = replace(wide, model=replace(MODEL, tied=False))
    assert Pool([untied], CARD).host(4)["engines' copies"] == 2 * MODEL.served
