"""Running scores: agent_rae, and groups that are joined with what their role had before. Their values by formula:
test_second_implementation.py."""

from __future__ import annotations

import math

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, RunningScores, compute_advantages
from verl_mas.advantage.record import NOTHING, Moments, Owner
from verl_mas.advantage.verl_hook import stock
from verl_mas.errors import DataError


def group(scores, role="solver", task="t"):
    """One act in each session of a task."""
    n = len(scores)
    return AdvantageInput(torch.tensor(scores), [task] * n, range(n), [role] * n)


def known(mass=10.0, mean=0.5, variance=0.25, role="solver"):
    return RunningScores({Owner("", role): Moments(mass, mean, variance)})


@pytest.mark.parametrize("name", ["agent_grpo", "agent_rloo"])
def test_a_first_step_has_the_bits_of_no_shrinkage_and_no_shrinkage_reads_nothing(name):
    batch, running = group([0.1, 0.7, 0.3, 0.9]), known()
    plain = compute_advantages(name, batch).advantages
    assert torch.equal(
        plain, compute_advantages(name, batch, AdvantageOptions(shrinkage=2), RunningScores()).advantages
    )
    assert torch.equal(plain, compute_advantages(name, batch, None, running).advantages)
    assert running.scores == known().scores


def test_a_lone_call_is_compared_with_the_running_mean_as_agent_rae_does():
    lone = group([1.0])
    rae = compute_advantages("agent_rae", lone, None, known()).advantages
    assert rae.tolist() == pytest.approx([0.5])
    assert torch.equal(rae, compute_advantages("agent_rloo", lone, AdvantageOptions(shrinkage=3), known()).advantages)
    assert compute_advantages("agent_grpo", lone, AdvantageOptions(shrinkage=3), known()).advantages[0] > 0.5


def test_the_advantage_of_a_lone_call_is_bounded_although_all_scores_before_were_equal():
    # 3 scores of 0 and one of 1: the same as the one success of a group of four.
    lone = compute_advantages("agent_grpo", group([1.0]), AdvantageOptions(shrinkage=3), known(mean=0.0, variance=0.0))
    four = compute_advantages("agent_grpo", group([1.0, 0.0, 0.0, 0.0]))
    assert lone.advantages[0] == pytest.approx(four.advantages[0])


def test_the_metrics_are_named_by_role_over_all_sources():
    batch = AdvantageInput(
        torch.tensor([1.0, 0.0, 0.0]), ["s", "t", "t"], [0, 0, 1], ["a_0", "a_1", "a_0"], ["a"] * 3, ["x", "y", "y"]
    )
    metrics = compute_advantages("agent_rae", batch, None, RunningScores()).metrics
    found = {name: metrics[f"advantage/a/running_{name}"] for name in ("mean", "std", "count")}
    assert found == pytest.approx({"mean": 1 / 3, "std": math.sqrt(2) / 3, "count": 3})


def test_joining_nothing_changes_no_bit_and_large_scores_do_not_cancel():
    found = Moments(3.0, 1e6 + 1 / 3, 2 / 9)
    assert found.joined(NOTHING) == NOTHING.joined(found) == found
    assert found.joined(Moments(3.0, 1e6 + 1 / 3, 2 / 9)).variance == 2 / 9


@pytest.mark.parametrize(("name", "options"), [("agent_rae", {}), ("agent_grpo", {"shrinkage": 2.0})])
def test_without_running_scores_there_is_an_error_and_no_silent_zero(name, options):
    with pytest.raises(DataError, match=r"pass RunningScores\(\) to compute_advantages"):
        compute_advantages(name, group([1.0, 0.0]), AdvantageOptions(**options))


def test_verls_own_trainer_is_refused_because_it_keeps_no_scores():
    with pytest.raises(DataError, match="verl's own trainers do not keep"):
        stock("agent_rae")(torch.ones(2, 1), torch.ones(2, 1), None, group([1.0, 0.0]).codes("task").ids.numpy())
