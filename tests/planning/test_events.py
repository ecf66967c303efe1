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


def test_together_a_rollout_has_all_engines_and_in_phases_one():
    together, phases = (Pool([A, B], CARD, phases=phases) for phases in (False, True))
    assert totals(together, ROLLOUT) == [pytest.approx(2 * 24 + 2)]
    assert totals(phases, ROLLOUT) == [pytest.approx(24 + 2.5 + 2)] * 2
    assert not Pool([A], CARD, phases=True).phases, "one policy alone"


def test_policies_start_in_turn_beside_the_sleeping_engines_of_those_before():
    assert totals(Pool([A, B], CARD), START) == [pytest.approx(25), pytest.approx(25 + 2.5 + 1)]


def test_what_is_free_for_sglang_is_what_those_before_leave():
    a, b = (replace(p, engine="sglang") for p in (A, B))
    pool = Pool([a, b], CARD)
    assert pool.caches["a"] - pool.caches["b"] == pytest.approx(0.3 * 3.5 * GIB)


def test_weights_arrive_while_the_engines_before_are_awake_unless_in_phases():
    together, phases = (totals(Pool([A, B], CARD, phases=phases), SYNC) for phases in (False, True))
    assert together[0] == pytest.approx(together[1] - 24 + 2.5)
    assert phases[0] == pytest.approx(phases[1]) == pytest.approx(together[0])


def test_an_update_has_the_sleeping_engines_and_the_contexts_of_the_others():
    alone, both = (totals(Pool(policies, CARD), UPDATE)[0] for policies in ([A], [A, B]))
    assert both - alone == pytest.approx(2.5 + 1)


def test_without_offload_the_others_stay_on_the_gpu():
    held = replace(HELD, name="b")
    moved, kept = (totals(Pool([A, other], CARD), LOG_PROBS)[0] for other in (B, held))
    assert (kept - moved) * GIB == pytest.approx(12 * MODEL.parameters / 4)


def test_a_frozen_policy_has_an_engine_and_nothing_else():
    pool = Pool([A, FROZEN], CARD)
    assert totals(pool, ROLLOUT) == [pytest.approx(48 + 1)]
    assert len(totals(pool, UPDATE)) == 1


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


def test_the_larger_one_of_a_policy_and_its_critic_counts_while_they_are_loaded():
    large = replace(HELD, model=replace(MODEL, tensors=(10**9,), tied=False))
    assert Pool([replace(A, critic=large)], CARD).host(4) == {"a model being loaded": 4 * 10**9}
    served = replace(large, pool="left", serving_pool="serve", critic=large).at("serve")
    assert Pool([served], CARD).host(4) == {}, "a pool that only serves has no critic"


def test_sglang_has_a_copy_per_replica_on_the_node():
    wide = replace(A, engine="sglang", tensor_parallel=2)
    untied = replace(wide, model=replace(MODEL, tied=False))
    assert Pool([untied], CARD).host(4)["engines' copies"] == 2 * MODEL.served


APART = replace(HELD, pool="left", serving_pool="serve")


def test_a_policy_that_is_served_elsewhere_has_no_engine_where_it_trains_and_no_trainer_where_it_is_served():
    left, serve = (Pool([APART.at(pool)], CARD) for pool in ("left", "serve"))
    alone = Pool([HELD], CARD)
    # The context and the graphs of a sleeping engine are 2.5 GiB.
    assert totals(left, UPDATE)[0] == pytest.approx(totals(alone, UPDATE)[0] - 2.5)
    assert totals(serve, ROLLOUT) == [pytest.approx(24)] and not totals(serve, UPDATE)
    assert (left.caches["a"], left.host(4).get("engines' copies")) == (0, None)


def test_weights_from_another_pool_arrive_in_two_buckets_while_the_other_engines_serve():
    first, second = APART.at("serve"), replace(APART, name="b").at("serve")
    (alone,) = totals(Pool([first], CARD), SYNC)
    assert alone * GIB == pytest.approx(2.5 * GIB + MODEL.served + 3 * first.bucket)
    assert totals(Pool([first, second], CARD), SYNC) == [pytest.approx(alone + 24)] * 2


def test_pools_that_send_at_the_same_time_have_buckets_beside_each_other():
    first, second = APART.at("serve"), replace(APART, name="b", pool="right").at("serve")
    third = replace(second, name="d")
    (alone,) = totals(Pool([first], CARD), SYNC)
    # By hand: 3 buckets of 2 GiB more, as `right` sends its policies one after another.
    assert totals(Pool([first, second], CARD), SYNC) == [pytest.approx(alone + 24 + 6)] * 2
    assert totals(Pool([first, second, third], CARD), SYNC)[0] == pytest.approx(alone + 48 + 6)


def test_a_snapshot_gets_its_weights_into_a_bucket_beside_its_engine_awake():
    frozen, snapshot = (totals(Pool([A, policy], CARD), SYNC)[1] for policy in (FROZEN, replace(FROZEN, snapshot=True)))
    cache = Pool([A, FROZEN], CARD).caches["c"]
    assert (snapshot - frozen) * GIB == pytest.approx(2 * GIB + cache)


def test_a_sender_has_two_buckets_and_the_tensor_that_it_gathers():
    (sends,) = totals(Pool([APART.at("left")], CARD), SYNC)
    (rests,) = totals(Pool([APART.at("left")], CARD), ROLLOUT)
    assert (sends - rests) * GIB == pytest.approx(2 * APART.bucket + 4 * MODEL.largest)
