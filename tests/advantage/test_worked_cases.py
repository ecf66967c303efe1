"""Values that must be exactly zero, and choices that `test_second_implementation.py` cannot see."""

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages

NAN = float("nan")


def advantages(name, scores, options=None, **columns):
    """Return the advantages and metrics of one task. By default, a solver acts once in each session."""
    n = len(scores)
    given = {"session": range(n), "turn": [0] * n, "branch": [0] * n, "agent": ["solver"] * n} | columns
    output = compute_advantages(
        name, AdvantageInput(torch.tensor(scores), ["t"] * n, **given), AdvantageOptions(**options or {})
    )
    return output.advantages.tolist(), output.metrics


@pytest.mark.parametrize("scale", ["std", "none", "batch_std"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("name", ["agent_grpo", "team_grpo", "agent_rloo"])
@pytest.mark.parametrize("scores", [[0.9] * 8, [0.90000004, 0.9, 0.9, 0.90000004]], ids=["equal", "rounding"])
def test_scores_that_are_equal_or_differ_by_rounding_have_advantages_of_exactly_zero(name, baseline, scale, scores):
    """float32 cannot represent 0.9, so verl's mean is off by one rounding step. Divided by eps 1e-6, this error becomes
    an advantage of -0.056."""
    assert set(advantages(name, scores, {"baseline": baseline, "scale": scale})[0]) == {0.0}


@pytest.mark.parametrize(
    "options", [{"baseline": "leave_one_out", "scale": "none"}, {"weighting": "per_session", "scale": "none"}]
)
def test_a_lone_session_has_advantages_of_exactly_zero_whatever_its_acts_scored(options):
    assert advantages("agent_grpo", [1.0, 0.9], options, session=[0, 0], turn=[0, 1])[0] == [0.0, 0.0]


def test_a_padded_copy_changes_no_advantage():
    """Dr. MAS's code copies random rows to make counts divisible, and counts the copies in the statistics."""
    padding = torch.tensor([False, True, False, False, False, True])
    found, _ = advantages("agent_grpo", [1.0, 1.0, 0.0, 0.0, 0.0, NAN], session=[0, 0, 1, 2, 3, 0], padding=padding)
    assert found == pytest.approx([1.5, 0, -0.5, -0.5, -0.5, 0], abs=2e-5)


def test_at_grpo_says_of_each_agent_whether_its_groups_are_of_one_prompt():
    agents = {"agent": ["planner"] * 4 + ["tool"] * 2, "branch": [0, 1, 0, 1, 0, 0], "session": [0, 0, 1, 1, 0, 1]}
    found, metrics = advantages("at_grpo", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], **agents)
    assert found == pytest.approx([2**-0.5, -(2**-0.5)] * 3, abs=2e-5)
    assert {"advantage/planner/one_prompt": 1.0, "advantage/tool/one_prompt": 0.0}.items() <= metrics.items()
