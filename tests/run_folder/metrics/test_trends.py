"""Findings about the course of a run, on the curves of recorded runs and on curves of the shapes that people report."""

import json
import tracemalloc
from pathlib import Path

import pytest

from verl_mas.run_folder.metrics.trends import AGREEMENT, Trends

RECORDED = Path(__file__).parents[3] / "benchmarks/evidence/results"


def found(steps, **about):
    """Map each kind of finding to the step at which it is first found, and to its text."""
    trends, first = Trends(), {}
    for number, metrics in enumerate(steps, 1):
        for one in trends.add(metrics | about):
            first.setdefault(one.kind, (number, one.text))
    return first


def curve(key, values, **others):
    return found([{key: value} | others for value in values])


def test_a_recorded_reward_that_falls_for_good_is_found():
    run = json.loads((RECORDED / "guide_offset_team-3.json").read_text())
    _, text = curve("critic/score/mean", run["series"]["agent/driver/reward/score"])["reward_falls"]
    assert "the reward has fallen from" in text


def test_few_recorded_runs_have_a_falling_reward():
    """A finding in every other run would be ignored."""
    runs = [json.loads(path.read_text()).get("series", {}) for path in sorted(RECORDED.glob("agent_grpo*.json"))]
    curves = [values for series in runs for key, values in series.items() if key.endswith("/reward/score")]
    falling = [values for values in curves if "reward_falls" in curve("critic/score/mean", values)]
    assert len(curves) >= 20
    assert len(falling) <= len(curves) // 20


def test_a_reward_that_does_not_move_is_found_with_the_learning_rate():
    still = [0.30 + 0.02 * (step % 3) for step in range(40)]
    step, text = curve("critic/score/mean", still, **{"actor/lr": 5e-7})["reward_stands"]
    assert step == 30
    assert "has not changed in 30 steps" in text
    assert "The learning rate is 5e-07. LoRA needs about ten times" in text
    slow = [value + 0.004 * step for step, value in enumerate(still)]
    assert curve("critic/score/mean", slow, **{"actor/lr": 5e-7}) == {}


def test_entropy_that_rises_is_found_by_policy():
    rising = [0.4 * 1.1**step for step in range(20)]
    step, text = curve("policy/solver/actor/entropy", rising)["entropy_rises"]
    assert step < 18
    assert "the entropy of policy solver has risen from 0.49 to" in text
    assert curve("policy/solver/actor/entropy", [0.4 + 0.02 * (step % 5) for step in range(20)]) == {}
    assert curve("actor/entropy", [0.8 * 0.9**step for step in range(20)]) == {}


@pytest.mark.parametrize(
    ("gigabytes", "grows"),
    [
        ([60 + 0.4 * step for step in range(30)], True),
        ([60 + min(step, 8) for step in range(30)], False),  # a cache that is filled
        ([60 + 3 * (step % 2) for step in range(30)], False),
    ],
)
def test_memory_that_grows_in_nearly_every_step_is_found(gigabytes, grows):
    kinds = curve("actor/perf/cpu_memory_used_gb", gigabytes)
    assert list(kinds) == (["memory_grows"] if grows else [])
    assert all("memory of the host grows" in text for _, text in kinds.values())


def test_tools_that_are_no_longer_called_are_found():
    acts, calls = {"agent/a/acts": 8.0}, {"agent/a/tool_calls": 1.5}
    step, text = found([acts | calls] * 6 + [acts] * 6)["tools_unused"]
    assert step == 11
    assert "agent a hardly calls its tools any more: 1.5 calls per session at first, 0 now" in text
    assert found([acts | calls] * 12) == {}


def test_validations_of_the_same_weights_that_differ_are_found():
    score = "val-core/gsm8k/acc/mean@1"
    moved, unmoved = ({"actor/grad_norm": 0.3, "actor/lr": rate} for rate in (1e-6, 0.0))
    assert found([{score: 0.61}, moved, {score: 0.63}]) == {}
    step, text = found([{score: 0.61}, unmoved, {score: 0.63}])["validation_varies"]
    assert step == 3
    assert "two validations of the same weights gave 0.61 and 0.63" in text


@pytest.mark.parametrize(
    ("agreement", "success", "kind"),
    [
        (0.02, [0.4, 0.35, 0.2, 0.1], "agreement_without_success"),
        (0.02, [0.4, 0.7, 0.3, 0.45], "agreement_without_success"),  # after it had risen
        (0.02, [0.4, 0.4, 0.41, 0.4], "reward_without_success"),
        (0.02, [0.4, 0.5, 0.6, 0.7], None),
        (0.0, [0.4, 0.35, 0.2, 0.1], None),  # success that falls without rising agreement has another cause
    ],
)
def test_answers_that_agree_more_and_are_right_less_often_are_found(agreement, success, kind):
    """Only one of the two findings is reported, because the reward is the agreement."""
    score, held_out = "val-core/sums/acc/mean@1", dict(zip((4, 12, 20, 28), success, strict=True))
    moves = {"actor/grad_norm": 0.3}
    steps = [moves | dict.fromkeys((AGREEMENT, "critic/score/mean"), 0.3 + agreement * i) for i in range(29)]
    kinds = found([step | ({score: held_out[i]} if i in held_out else {}) for i, step in enumerate(steps)])
    assert list(kinds) == ([kind] if kind else [])
    if kind == "agreement_without_success":
        assert f"was {max(success)} at best. Agreement teaches" in kinds[kind][1]
    if kind == "reward_without_success":
        assert "val-core/sums/acc/mean@1 has not: 0.4 at first" in kinds[kind][1]


def test_a_step_is_kept_in_less_than_two_kib():
    """A run has hundreds of metrics and thousands of steps. In a soak test, the task runner kept 11 KiB per step."""
    trends, steps = Trends(), 200
    names = [*(f"policy/main/actor/metric_{i}" for i in range(400)), "critic/score/mean", "actor/entropy"]
    tracemalloc.start()
    for step in range(steps):
        trends.add({name: step / 7 for name in names})
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / steps < 2048
