from __future__ import annotations

import pytest
import torch

from verl_mas.advantage import AdvantageInput, compute_advantages


def team(scores, session, agent, task=None, **columns):
    n = len(scores)
    return AdvantageInput(
        scores=torch.tensor(scores),
        task=task or ["t"] * n,
        session=session,
        agent=agent,
        turn=list(range(n)),
        branch=[0] * n,
        **columns,
    )


def metrics(batch, agent, name="agent_grpo"):
    prefix = f"advantage/{agent}/"
    found = compute_advantages(name, batch).metrics
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def test_groups_are_counted_per_agent():
    batch = team(
        [1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
        session=[0, 1, 0, 1, 0, 1],
        agent=["solver", "solver", "solver", "solver", "verifier", "verifier"],
        task=["a", "a", "b", "b", "a", "b"],
    )
    solver, verifier = metrics(batch, "solver"), metrics(batch, "verifier")
    assert (solver["groups"], solver["groups_of_one"], solver["groups_uniform"]) == (2, 0, 0.5)
    assert (solver["group_size_mean"], solver["group_size_min"], solver["group_size_max"]) == (2, 2, 2)
    assert (verifier["groups"], verifier["groups_of_one"], verifier["groups_uniform"]) == (2, 1, 0)
    assert (solver["mu"], verifier["mu"]) == (0.75, 0.5)


def test_padding_is_in_no_statistic():
    rows = {"session": [0, 1, 1], "agent": ["solver"] * 3}
    padded = team([1.0, 0.0, 9.0], **rows, padding=torch.tensor([False, False, True]))
    assert metrics(padded, "solver") == metrics(team([1.0, 0.0], session=[0, 1], agent=["solver"] * 2), "solver")


def test_inflation_is_the_lemmas_factor():
    # Rewards of the sessions 1 1 0 0 0 0 0 0; the verifier is called in the last six and the second.
    rewards = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    called = [1, 2, 3, 4, 5, 6, 7]
    batch = team(
        rewards + [rewards[s] for s in called],
        session=[*range(8), *called],
        agent=["solver"] * 8 + ["verifier"] * 7,
    )
    mu, variance = 2 / 8, 2 / 8 * 6 / 8
    mu_k, variance_k = 1 / 7, 1 / 7 * 6 / 7
    verifier = metrics(batch, "verifier")
    assert verifier["mu"] == pytest.approx(mu_k)
    assert verifier["sigma"] == pytest.approx(variance_k**0.5)
    assert verifier["inflation"] == pytest.approx((variance_k + (mu_k - mu) ** 2) / variance)
    assert metrics(batch, "solver")["inflation"] == pytest.approx(1.0)


def test_inflation_is_left_out_where_every_session_of_a_task_scored_the_same():
    batch = team([0.9] * 4, session=[0, 1, 0, 1], agent=["solver", "solver", "verifier", "verifier"])
    assert "inflation" not in metrics(batch, "solver")


def test_a_shared_group_is_counted_for_each_of_its_agents():
    batch = team([1.0, 0.0, 1.0, 0.0], session=[0, 1, 0, 1], agent=["solver", "solver", "verifier", "verifier"])
    for agent in ("solver", "verifier"):
        assert metrics(batch, agent, "team_grpo")["groups"] == 1
        assert metrics(batch, agent, "team_grpo")["group_size_mean"] == 2  # sessions, each counted once
