"""Cases in which implementations differ. Each states the value we choose and why."""

from __future__ import annotations

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages


def one_agent(scores, padding=None, **columns):
    """Sessions of one task, one act each."""
    n = len(scores)
    given = {"task": ["t"] * n, "session": range(n), "agent": ["solver"] * n, "turn": [0] * n, "branch": [0] * n}
    return AdvantageInput(
        scores=torch.tensor(scores), padding=None if padding is None else torch.tensor(padding), **{**given, **columns}
    )


def advantages(batch, name="agent_grpo", **options):
    return compute_advantages(name, batch, AdvantageOptions(**options)).advantages.tolist()


@pytest.mark.parametrize("name", ["agent_grpo", "team_grpo", "agent_rloo"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", "none", "batch_std"])
def test_eight_equal_rewards_are_eight_exact_zeros(name, baseline, scale):
    # 0.9 has no exact float32: verl's mean is off by one rounding step, which over eps 1e-6 becomes -0.056.
    assert advantages(one_agent([0.9] * 8), name, baseline=baseline, scale=scale) == [0.0] * 8


def test_scores_that_differ_by_rounding_only_are_equal():
    # A reward summed in another order comes out one float32 rounding step away.
    next_to = torch.nextafter(torch.tensor(0.9), torch.tensor(1.0)).item()
    assert next_to != torch.tensor(0.9).item()
    assert advantages(one_agent([next_to, 0.9, 0.9, next_to])) == [0.0] * 4


def test_a_penalty_on_a_uniform_group_has_its_full_effect():
    # Seven well-formed successes and one malformed: the formula divides 0.1 by the deviation that the 0.1 itself makes,
    # so any penalty weighs the same. That is the papers' choice; scale=none keeps the penalty's own size.
    scores = [1.0] * 7 + [0.9]
    assert advantages(one_agent(scores)) == pytest.approx([0.35354] * 7 + [-2.47480], abs=1e-4)
    assert advantages(one_agent([1.0] * 7 + [0.99])) == pytest.approx([0.35354] * 7 + [-2.47480], abs=1e-3)
    assert advantages(one_agent(scores), scale="none") == pytest.approx([0.0125] * 7 + [-0.0875], abs=1e-6)


def test_a_lone_success_gets_the_sample_deviation_that_verl_divides_by():
    scores = [1.0] + [0.0] * 7
    assert advantages(one_agent(scores)) == pytest.approx([2.47487] + [-0.35355] * 7, abs=1e-4)
    # The paper's text divides by N.
    population = advantages(one_agent(scores), deviation="population")
    assert population == pytest.approx([2.64575] + [-0.37796] * 7, abs=1e-4)


def test_a_padded_copy_changes_no_ones_advantage():
    # Dr. MAS's code copies random rows to make counts divisible, and counts the copies in the statistics.
    alone = advantages(one_agent([1.0, 0.0, 0.0, 0.0]))
    sessions = [0, 0, 1, 2, 3, 0]
    padded = one_agent(
        [1.0, 1.0, 0.0, 0.0, 0.0, float("nan")], [False, True, False, False, False, True], session=sessions
    )
    assert advantages(padded) == [alone[0], 0.0, *alone[1:], 0.0]
    assert alone == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_group_of_one_has_no_advantage_unless_raw_is_chosen():
    # verl and Dr. MAS's code use the raw score: an agent called once is then rewarded for being called.
    assert advantages(one_agent([0.8])) == [0.0]
    assert advantages(one_agent([0.8]), group_of_one="raw") == pytest.approx([0.8])


def test_a_second_turn_of_the_same_session_weighs_by_choice():
    # Session 0 succeeded after three acts, session 1 failed after one.
    batch = one_agent([1.0, 1.0, 1.0, 0.0], session=[0, 0, 0, 1], turn=[0, 1, 2, 0])
    assert advantages(batch) == pytest.approx([0.5] * 3 + [-1.5], abs=1e-5)
    assert advantages(batch, weighting="per_session") == pytest.approx([0.70711] * 3 + [-0.70711], abs=1e-4)


def test_leaving_one_out_leaves_out_its_whole_session():
    # The three acts of session 0 share its reward; a baseline with two of them in it would not be independent.
    batch = one_agent([1.0, 1.0, 1.0, 0.0], session=[0, 0, 0, 1], turn=[0, 1, 2, 0])
    assert advantages(batch, "agent_rloo") == [1.0, 1.0, 1.0, -1.0]


def test_a_lone_session_has_no_other_to_be_compared_with_whatever_its_acts_scored():
    batch = one_agent([1.0, 0.9], session=[0, 0], turn=[0, 1])
    assert advantages(batch, "agent_rloo") == [0.0, 0.0]
    assert advantages(batch, weighting="per_session") == [0.0, 0.0]
    assert advantages(batch, weighting="per_session", scale="none") == [0.0, 0.0]


def test_agents_that_share_a_policy_are_still_distinguished():
    # A verifier called only when the solver failed: with one baseline all its acts get a negative advantage.
    batch = one_agent(
        [1.0, 1.0, 0.0, 0.5, 0.0, 0.5], session=[0, 1, 2, 3, 2, 3], agent=["solver"] * 4 + ["verifier"] * 2
    )
    assert advantages(batch)[4:] == pytest.approx([-0.70711, 0.70711], abs=1e-4)
    assert advantages(batch, "team_grpo")[4] < -1


def test_equal_debaters_are_one_group_by_role():
    # Each debater acts once in one session: alone it has nothing to be compared with, as a role it has the others.
    columns = {"session": [0] * 3, "agent": ["debater_0", "debater_1", "debater_2"], "role": ["debater"] * 3}
    batch = one_agent([1.0, 0.0, 0.5], **columns)
    assert advantages(batch) == [0.0, 0.0, 0.0]
    assert advantages(batch, by="role") == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


def test_candidates_of_different_sessions_are_not_merged():
    # AT-GRPO's code keys groups so that the candidates of several problems become one group.
    batch = one_agent([1.0, 0.0, 0.6, 0.5], session=[0, 0, 1, 1], branch=[0, 1, 0, 1])
    assert advantages(batch, "at_grpo") == pytest.approx([0.70711, -0.70711] * 2, abs=1e-4)


def test_without_branching_at_grpo_compares_sessions_at_one_turn_and_says_so():
    batch = one_agent([1.0, 0.0, 0.2, 0.2], session=[0, 1, 0, 1], turn=[0, 0, 1, 1])
    output = compute_advantages("at_grpo", batch)
    assert output.advantages.tolist() == pytest.approx([0.70711, -0.70711, 0, 0], abs=1e-4)
    assert output.metrics["advantage/solver/one_prompt"] == 0.0


def test_an_agent_that_never_branches_is_compared_over_sessions_beside_one_that_does():
    batch = one_agent(
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        session=[0, 0, 1, 1, 0, 1],
        agent=["planner"] * 4 + ["tool"] * 2,
        branch=[0, 1, 0, 1, 0, 0],
    )
    output = compute_advantages("at_grpo", batch)
    assert output.advantages.tolist() == pytest.approx([0.70711, -0.70711] * 3, abs=1e-4)
    assert output.metrics["advantage/planner/one_prompt"] == 1.0
    assert output.metrics["advantage/tool/one_prompt"] == 0.0


def test_gigpo_credits_the_better_step_from_an_observation_met_twice():
    # Both sessions start at x; the second one wins, so its step from x is the better one, twice.
    columns = {"session": [0, 1], "observation": ["x", "x"]}
    assert advantages(one_agent([0.0, 1.0], **columns), "agent_gigpo", step_weight=0.5) == pytest.approx(
        [-1.06066, 1.06066], abs=1e-4
    )


def test_gigpo_without_equal_observations_is_agent_grpo():
    batch = one_agent([0.0, 1.0, 0.5], observation=["x", "y", "z"])
    assert advantages(batch, "agent_gigpo") == advantages(batch)


def test_gigpo_discounts_the_reward_of_steps_far_from_the_end():
    # One session, one observation at turn 0 and at turn 2: only the discount distinguishes the two acts.
    batch = one_agent([1.0, 1.0], session=[0, 0], turn=[0, 2], observation=["x", "x"])
    assert advantages(batch, "agent_gigpo") == pytest.approx([-0.70711, 0.70711], abs=1e-4)
    assert advantages(batch, "agent_gigpo", gamma=1.0) == [0.0, 0.0]


def test_reinforce_pp_compares_an_agent_over_all_tasks_and_tokens():
    batch = one_agent([1.0, 0.0], task=["a", "b"], tokens=torch.tensor([3, 1]))
    assert advantages(batch, "agent_reinforce_pp") == pytest.approx([0.5, -1.5], abs=1e-5)
