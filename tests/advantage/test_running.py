"""Running scores: metrics and errors. `test_second_implementation.py` checks the values of advantages."""

import math

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, RunningScores, compute_advantages
from verl_mas.advantage.record import NOTHING, Moments
from verl_mas.errors import DataError


def group(scores, role="solver", task="t"):
    """One act in each session of a task."""
    n = len(scores)
    return AdvantageInput(torch.tensor(scores), [task] * n, range(n), [role] * n)


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
    with pytest.raises(DataError, match=r"verl's own trainers do not keep(.|\n)*pass RunningScores\(\)"):
        compute_advantages(name, group([1.0, 0.0]), AdvantageOptions(**options))
