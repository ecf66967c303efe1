"""Rows of a step, and the seconds that it takes."""

from dataclasses import replace

import pytest
from recipe_configs import composed
from small_model import MODEL, N
from small_model import POLICY as SMALL

from verl_mas.config.run import Run
from verl_mas.planning.load import Policy
from verl_mas.planning.path import BLOCKS, FLASH, FUSED, TRAFFIC, TrainingPath
from verl_mas.planning.step import (
    Assumed,
    Sample,
    Step,
    expected,
    forward,
    rows_of,
    seconds,
    training_line,
    usual_step,
)

# A GPU that computes 1e12 FLOPs and reads 1e12 bytes per second, and is fully utilised.
ASSUMED = Assumed(tflops=1.0, mfu=1.0, bandwidth=1.0, mbu=1.0, launch=0.001, link=1.0)
STEP = Step(100, 2.0, 2.0, 40, 60, 40, 400, 400, {}, ASSUMED, None)
POLICY = replace(SMALL, row=512, rows=200.0, updates=2, trainers=4, servers=4, kv_tokens=10**6)


def run(recipe: str) -> Run:
    return Run.of(composed(f"+recipe={recipe}"))


def test_what_is_not_known_is_assumed_and_says_so():
    step = usual_step(run("math/shared"), Assumed(), Sample())
    assert (step.acts, step.prompt, step.response, step.steps) == (2, 2048, 2048, None)
    assert step.sources["prompt"].startswith("a quarter of data.max_prompt_length")
    told = usual_step(run("math/shared"), Assumed(acts=3, prompt=500, response=100, steps=7), Sample(task=90, of=1))
    assert (told.rows, told.length, told.steps, told.alone.length) == (768, 600, 7, 190)
    assert set(told.sources.values()) == {"as --assume says"}


def test_the_data_says_how_long_prompts_are_and_how_many_steps_there_are():
    step = usual_step(run("math/shared"), Assumed(response=1000), Sample(task=100, of=64, rows=330))
    assert step.steps == 2 * 10 and step.prompt == 100 + 1000 / 2 and step.alone.prompt == 100
    assert step.sources["prompt"].startswith("the first 64 rows")
    assert usual_step(run("math/shared"), Assumed(), Sample(task=10**6)).prompt == 8192


def test_candidates_are_rows_that_do_not_wait_for_each_other_and_a_workflow_can_say_its_acts():
    branching = Run.of(composed("+mas=planner_executor +recipe=plan_path/qwen3"))
    step = usual_step(branching, Assumed(), Sample())
    assert (step.acts, step.turns) == (8, 2)
    assert usual_step(run("debate/qwen3"), Assumed(), Sample()).sources["acts"] == "as many as the workflow can have"


def test_rows_are_those_of_the_agents_on_a_policy_and_of_adapters_on_their_base():
    for recipe, names in (("math/separate", {"solver", "verifier"}), ("math/adapters", {"main"})):
        rows = rows_of(run(recipe), replace(STEP, sessions=256))
        assert rows == dict.fromkeys(names, 512 / len(names))


def test_micro_batches_by_tokens_are_filled_and_others_shrink_with_their_rows():
    filled, few = expected(POLICY, STEP), expected(replace(POLICY, rows=4), STEP)
    assert filled == POLICY
    assert (few.update_tokens, few.log_prob_tokens) == (50, 100)
    assert expected(by(by_tokens=False), STEP).update_tokens == int(256 * 100 / 512)


def test_training_is_its_flops_and_a_reference_and_checkpointing_are_passes_more():
    # The tokens on each GPU, and the time of their forward pass. flash-attn compares each token with half of its row.
    tokens, streamed = 200 * 100 / 4, 1000 / 0.8e12
    once = tokens * forward(MODEL, 50) / 1e12
    assert forward(MODEL, 50) == 2 * N + 4 * 4 * 64 * 50
    scored, updated = (tokens * size * streamed for size in TRAFFIC[FLASH])
    found = seconds([POLICY], STEP)
    assert (found["log-probs"], found["update"]) == pytest.approx((once + scored, 4 * once + updated))
    assert found["weight sync"] == pytest.approx(2 * N / 1e9)
    found = seconds([by(reference=True, checkpointing=False, optimizer_offload=True)], STEP)
    assert (found["log-probs"], found["update"]) == pytest.approx((2 * (once + scored), 3 * once + updated))
    assert found["weight sync"] == pytest.approx((2 * N + 2 * 8 * N / 4) / 1e9)
    assert set(seconds([replace(POLICY, trains=False)], STEP)) == {"rollout"}


def by(**training) -> Policy:
    return replace(POLICY, **training)


def test_without_flash_attn_a_token_is_compared_with_its_whole_micro_batch_at_half_the_speed():
    blocks, tokens, streamed = by(path=TrainingPath("sdpa", BLOCKS)), 200 * 100 / 4, 1000 / 0.8e12
    found = seconds([blocks], STEP)
    scored, updated = (tokens * size * streamed for size in TRAFFIC[BLOCKS])
    assert found["log-probs"] == pytest.approx(tokens * forward(MODEL, 2 * 512) / 1e12 + scored)
    assert found["update"] == pytest.approx(4 * tokens * forward(MODEL, 2 * 256) / 1e12 + updated)
    padded = seconds([by(path=TrainingPath("sdpa", BLOCKS, packed=False))], STEP)
    assert padded["update"] == pytest.approx(4 * tokens * forward(MODEL, 2 * 100) / 1e12 + updated)
    fused = seconds([by(path=TrainingPath(log_probs=FUSED))], STEP)["update"]
    again = tokens * (TRAFFIC[FUSED][1] - TRAFFIC[FLASH][1]) * streamed + tokens * 2 * 64_000 / 1e12
    assert fused - seconds([POLICY], STEP)["update"] == pytest.approx(again)


def test_what_the_sessions_of_a_task_share_is_computed_once_and_logits_are_of_replies():
    step = replace(STEP, group=8)
    assert step.computed == 100 - 40 * 7 / 8
    tokens, replies, streamed = 200 * step.computed / 4, 200 * 40 / 4, 1000 / 0.8e12
    scored, updated = (replies * size * streamed for size in TRAFFIC[FLASH])
    once = tokens * forward(MODEL, 100) / 1e12  # at half the speed of flash-attn
    found = seconds([by(shares=True)], step)
    assert (found["log-probs"], found["update"]) == pytest.approx((once + scored, 4 * once + updated))
    assert "prefixes once" in training_line(by(shares=True), step)


def test_the_line_of_a_path_has_its_seconds_and_those_with_flash_attn_if_it_is_slower():
    long = replace(STEP, sessions=10**8)
    many = replace(by(path=TrainingPath("sdpa", BLOCKS)), rows=2e8)
    line, fast = training_line(many, long), training_line(replace(POLICY, rows=2e8), long)
    found, least = (seconds([replace(policy, rows=2e8)], long) for policy in (many, POLICY))
    computing, least = (f"{times['log-probs'] + times['update']:,.0f} s" for times in (found, least))
    assert line.startswith("attention: sdpa over all pairs of tokens of a micro batch; log-probs: blocks; estimated: ")
    assert line.endswith(f" {computing} per step, {least} with flash-attn")
    assert fast.endswith(f"log-probs: flash-attn's cross entropy; estimated: {least} per step")


def test_old_log_probs_are_a_pass_in_every_tenth_step_and_rows_without_an_advantage_are_left_out():
    before, after = seconds([POLICY], STEP), seconds([by(old_log_probs=0.1)], STEP)
    assert after["log-probs"] == pytest.approx(before["log-probs"] / 10) and after["update"] == before["update"]
    fewer = replace(STEP, assumed=replace(ASSUMED, skipped=0.4))
    assert seconds([POLICY], fewer) == before
    assert seconds([by(skips=True)], fewer)["update"] == pytest.approx(0.6 * before["update"])


def test_a_rollout_takes_as_long_as_the_longest_session_or_as_the_engines_are_busy():
    alone = 1e-6 + forward(MODEL, 50) / 1e12
    few = replace(POLICY, rows=4)
    assert seconds([few], replace(STEP, sessions=2))["rollout"] == pytest.approx((40 + 400) * alone)
    many = replace(POLICY, rows=20_000, kv_tokens=100)  # one request at a time
    prefill = 5000 * 60 * forward(MODEL, 30) / 1e12
    assert seconds([many], replace(STEP, sessions=10_000))["rollout"] == pytest.approx(prefill + 5000 * 40 * alone)
    # More requests at a time read the weights together; policies of one pool are busy one after another.
    batched = seconds([replace(many, kv_tokens=10**6)], replace(STEP, sessions=10_000))["rollout"]
    assert batched < seconds([many, many], replace(STEP, sessions=20_000))["rollout"] / 3
