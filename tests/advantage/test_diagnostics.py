import random
from collections import defaultdict
from statistics import fmean, pvariance

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages


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


def test_padding_is_in_no_statistic():
    rows = {"session": [0, 1, 1], "agent": ["solver"] * 3}
    padded = team([1.0, 0.0, 9.0], **rows, padding=torch.tensor([False, False, True]))
    assert metrics(padded, "solver") == metrics(team([1.0, 0.0], session=[0, 1], agent=["solver"] * 2), "solver")


def lemma(rows, agent):
    """Dr. MAS, Lemma 4.2, in plain Python: mu_k and sigma_k over Y_k, which has every act of the agent once."""
    factors, shares, within = [], [], []
    for task in sorted({task for task, _, name, _ in rows if name == agent}):
        sessions = defaultdict(list)
        for _, session, _, score in (row for row in rows if row[0] == task):
            sessions[session].append(score)
        mu = fmean(map(fmean, sessions.values()))
        variance = fmean(fmean((score - mu) ** 2 for score in scores) for scores in sessions.values())
        acts = [score for t, _, a, score in rows if (t, a) == (task, agent)]
        own, offset = pvariance(acts), (fmean(acts) - mu) ** 2
        factors += [(own + offset) / variance] * len(acts) if variance else []
        shares += [own / (own + offset)] * len(acts) if own else []
        within += [own] * len(acts)
    values = (("inflation", factors), ("signal_share", shares), ("sigma", [fmean(within) ** 0.5] if within else []))
    return {name: fmean(x) for name, x in values if x}


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sigma_inflation_and_signal_share_are_the_lemmas_whatever_the_number_of_acts(seed):
    rng = random.Random(seed)
    rows = [
        (task, session, agent, rng.randint(-8, 8) / 8)
        for task in "ab"
        for session in range(rng.randint(1, 4))
        for agent in "xyz"
        for _ in range(rng.randint(0, 3))
    ]
    task, session, agent, scores = ([row[i] for row in rows] for i in range(4))
    batch = team(scores, session, agent, task)
    for name in sorted(set(agent)):
        found = metrics(batch, name)
        kept = {key: found[key] for key in ("inflation", "signal_share", "sigma") if key in found}
        assert kept == pytest.approx(lemma(rows, name))


def test_a_shared_group_is_counted_for_each_of_its_agents():
    batch = team([1.0, 0.0, 1.0, 0.0], session=[0, 1, 0, 1], agent=["solver", "solver", "verifier", "verifier"])
    for agent in ("solver", "verifier"):
        assert metrics(batch, agent, "team_grpo")["groups"] == 1
        assert metrics(batch, agent, "team_grpo")["group_size_mean"] == 2  # sessions, each counted once


def test_a_group_of_rao_counts_copies_and_not_their_acts():
    batch = team([1.0, 1.0, 0.0], session=[0, 0, 1], agent=["solver"] * 3, instance=[1, 1, 1])
    found = compute_advantages("rao", batch, AdvantageOptions(main="solver")).metrics
    assert found["advantage/solver/group_size_mean"] == 2


def test_groups_by_role_are_counted_for_each_agent_of_the_role():
    batch = team([1.0, 0.0], session=[0, 0], agent=["left", "right"], role=["debater"] * 2)
    found = compute_advantages("agent_grpo", batch, AdvantageOptions(by="role")).metrics
    assert found["advantage/left/group_size_mean"] == found["advantage/right/group_size_mean"] == 2
    assert "advantage/debater/groups" not in found
