"""Whether a pool fits, and that the recommended settings make it fit."""

from dataclasses import replace

import pytest

from verl_mas.planning.events import Pool
from verl_mas.planning.fit import fits, fixes, odds, one_row, room, too_small, worst
from verl_mas.planning.hardware import SAFE, parse_gpus
from verl_mas.planning.known_models import known
from verl_mas.planning.load import Policy
from verl_mas.planning.model import size_of

CARD = parse_gpus("8x80").card
TRAINED = {"trains": True, "shards": 8, "update_tokens": 16384, "log_prob_tokens": 16384}
TRAINED |= {"param_offload": True, "optimizer_offload": True}


def policies(name: str, *fractions: float, engine: str = "vllm", **settings: object) -> list[Policy]:
    found = [
        Policy(f"p{number}", size_of(known(name)), engine, fraction, row=4096, **TRAINED, **settings)
        for number, fraction in enumerate(fractions)
    ]
    return found if len(found) == 1 else [replace(p, section=f"++mas.policies.{p.name}.overrides") for p in found]


def test_two_engines_at_half_of_the_card_do_not_fit_and_lower_fractions_or_phases_do():
    pool = Pool(policies("Qwen/Qwen3-1.7B", 0.5, 0.5), CARD)
    assert not fits(pool) and worst(pool).total > CARD
    phases, lower = fixes(pool, 8)
    assert phases == "++mas.pools.shared.serving=phases"
    key = "overrides.rollout.gpu_memory_utilization"
    assert lower == f"++mas.policies.p0.{key}=0.42 ++mas.policies.p1.{key}=0.42"
    assert fits(Pool(policies("Qwen/Qwen3-1.7B", 0.42, 0.42), CARD))


def test_vllm_needs_room_for_a_whole_context_and_sglang_for_a_row():
    for engine, small in (("vllm", 1), ("sglang", 0)):
        pool = Pool(policies("Qwen/Qwen2.5-7B", 0.29, engine=engine), CARD)
        assert len(too_small(pool)) == small
        assert fits(pool) is not bool(small)
    assert "actor_rollout_ref.rollout.max_model_len=4096" in fixes(Pool(policies("Qwen/Qwen2.5-7B", 0.29), CARD), 8)


def test_the_recommended_settings_leave_other_policies_alone_where_there_is_one():
    pool = Pool(policies("Qwen/Qwen3-32B", 0.5), CARD)
    assert not fits(pool)
    assert all("mas.policies" not in setting for setting in fixes(pool, 8))


def test_a_fixed_micro_batch_that_is_too_large_becomes_one_by_tokens_for_updates_and_log_probs():
    (policy,) = policies("Qwen/Qwen3-8B", 0.5)
    fixed = replace(policy, update_tokens=65536, log_prob_tokens=65536, by_tokens=False)
    (setting, *_) = fixes(Pool([fixed], CARD), 8)
    section = "actor_rollout_ref"
    assert f"{section}.actor.use_dynamic_bsz=true {section}.rollout.log_prob_use_dynamic_bsz=true" in setting
    (setting, *_) = fixes(Pool([replace(fixed, by_tokens=True)], CARD), 8)
    assert "dynamic_bsz" not in setting


def test_gpus_that_the_run_does_not_use_are_recommended_where_they_are_enough():
    held = [replace(policy, shards=4) for policy in policies("Qwen/Qwen3-14B", 0.6)]
    pool, more = Pool(held, CARD), ("trainer.n_gpus_per_node=8", 8)
    assert not fits(pool)
    assert more[0] in fixes(pool, 4, more) and more[0] not in fixes(pool, 4)
    fixed = [replace(policy, shards=2) for policy in held]  # fsdp_size=2
    assert more[0] not in fixes(Pool(fixed, CARD), 4, more)


def test_a_share_of_the_card_is_left_free_and_nothing_is_recommended_where_nothing_fits():
    for share in (0.88, 0.95):
        assert fits(Pool(policies("Qwen/Qwen3-1.7B", share), CARD)) is (share < SAFE - 0.03)
    pool = Pool(policies("Qwen/Qwen3-32B", 0.5), parse_gpus("1x16").card)
    assert not fits(pool) and fixes(pool, 1) == []


def test_the_largest_micro_batch_that_fits_is_recommended_and_says_what_it_costs():
    (policy,) = policies("Qwen/Qwen3-8B", 0.5)
    large = replace(policy, update_tokens=100_000, log_prob_tokens=20_000)
    (setting,) = [fix for fix in fixes(Pool([large], CARD), 8) if "max_token_len" in fix]
    assert "ppo_max_token_len_per_gpu=32768" in setting and "log_prob_max_token_len_per_gpu=20000" in setting
    assert setting.endswith("(it costs: micro batches of 32,768 tokens, so up to 3.05 times as many as with 100,000)")
    assert not fits(Pool([replace(policy, update_tokens=65_536)], CARD))


def test_a_pool_with_one_longest_row_has_room_for_a_share_of_its_micro_batches():
    (policy,) = policies("Qwen/Qwen3-8B", 0.5)
    pool = Pool([replace(policy, update_tokens=100_000)], CARD)
    assert not fits(pool) and fits(one_row(pool))
    share = room(pool)
    assert fits(pool.of([replace(policy, update_tokens=int(share * 100_000))]))
    assert not fits(pool.of([replace(policy, update_tokens=int((share + 0.01) * 100_000))]))
    assert room(Pool(policies("Qwen/Qwen3-8B", 0.95), CARD)) == 0.0


@pytest.mark.parametrize(
    ("fitting", "usual", "rows", "says"),
    [
        (0.3, 0.3, 40, "expected in every step"),
        (0.31, 0.3, 40, "possible in any step"),
        (0.6, 0.3, 40, "at most once in 13 steps"),  # 100 exp(-7.2) = 0.075
        (0.9, 0.3, 40, "less than once in a million steps"),
        (0.9, 0.3, 1, "possible in any step"),
    ],
)
def test_odds_fall_with_the_distance_from_the_usual_length_and_with_the_rows(fitting, usual, rows, says):
    assert odds(fitting, usual, rows, times=100) == says
