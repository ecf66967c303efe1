"""Published estimators that are settings of ours, compared with plain Python written from the paper or its code."""

import random
import statistics
from dataclasses import replace

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages
from verl_mas.errors import DataError

CASES = 2000  # tasks, which are compared in one batch


def advantages(name, *cases, **options):
    """Return the advantages of each case. A case is a task, with rows of (session, agent, instance, turn, branch,
    score)."""
    rows = [(task, *row) for task, case in enumerate(cases) for row in case]
    task, session, agent, instance, turn, branch, scores = ([row[i] for row in rows] for i in range(7))
    batch = AdvantageInput(torch.tensor(scores), task, session, agent, instance=instance, turn=turn, branch=branch)
    found = iter(compute_advantages(name, batch, AdvantageOptions(**options)).advantages.tolist())
    return [[next(found) for _ in case] for case in cases]


def same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=2e-6)


def planner_and_workers(rng, reward):
    """Sessions of a planner's acts and of any number of workers' acts, all with the session's reward."""
    rows = []
    for session in range(rng.randint(1, 8)):
        score = reward()
        rows += [(session, "planner", 0, turn, 0, score) for turn in range(rng.randint(1, 3))]
        for worker in range(rng.randint(0, 4)):
            rows += [(session, "worker", worker + 1, turn, 0, score) for turn in range(rng.randint(1, 3))]
    rng.shuffle(rows)
    return rows


def matpo(rows):
    """MATPO's code: GRPO over the planner's rollouts, one per session; a worker's rollout gets its planner's value."""
    reward = {session: score for session, *_, score in rows}
    mean = statistics.fmean(reward.values())
    if len(set(reward.values())) == 1:  # This includes a lone session, for which MATPO's code returns the raw reward.
        return [0.0] * len(rows)
    deviation = statistics.stdev(reward.values())
    return [(reward[session] - mean) / (deviation + 1e-6) for session, *_ in rows]


def test_matpo_is_team_grpo_with_one_reward_per_session():
    rng = random.Random(0)
    cases = [planner_and_workers(rng, lambda: rng.randint(0, 4) / 4) for _ in range(CASES)]
    same(advantages("team_grpo", *cases), map(matpo, cases))


def candidates(rng, reward):
    """Make K candidates of some acts, each scored by the mean outcome of its continuations."""
    return [
        (session, agent, 0, turn, branch, reward())
        for session in range(rng.randint(1, 3))
        for agent in ("reasoner", "actor")
        for turn in range(rng.randint(1, 2))
        for branch in range(rng.randint(2, 5))
    ]


def c3(rows):
    """C3: a candidate's value minus the mean value of the other candidates in its context."""
    groups = {}
    for *context, branch, value in rows:
        groups.setdefault(tuple(context), {})[branch] = value
    credit = []
    for *context, branch, value in rows:
        others = [other for key, other in groups[tuple(context)].items() if key != branch]
        credit.append(value - statistics.fmean(others))
    return credit


def test_c3_is_at_grpo_without_a_scale_that_leaves_the_candidate_out():
    rng = random.Random(1)
    cases = [candidates(rng, lambda: statistics.fmean(rng.randint(0, 1) for _ in range(4))) for _ in range(CASES)]
    same(advantages("at_grpo", *cases, baseline="leave_one_out", scale="none"), map(c3, cases))


def own_scores(rng, rows):
    """Copy the acts, with a score per invocation."""
    scores = {}
    return [(*row[:5], scores.setdefault(row[:3], rng.randint(0, 4) / 4)) for row in rows]


def aligned(rows, copies=12):
    """M-GRPO: each agent's invocations in a session are copied until all sessions have the same number of them."""
    scores = {row[:3]: row[-1] for row in rows}
    credit = {}
    for agent in ("planner", "worker"):
        made = {}
        for session, _, instance in (key for key in scores if key[1] == agent):
            made.setdefault(session, []).append(instance)
        batch = [scores[s, agent, i] for s, mine in made.items() for i in mine * (copies // len(mine))]
        lone = len(made) < 2 or len(set(batch)) == 1
        mean, deviation = (0.0, 0.0) if lone else (statistics.fmean(batch), statistics.pstdev(batch))
        for session, instance in ((s, i) for s, mine in made.items() for i in mine):
            offset = 0.0 if lone else scores[session, agent, instance] - mean
            credit[session, agent, instance] = offset / (deviation + 1e-6)
    return [credit[row[:3]] for row in rows]


def test_hierarchical_grpo_is_the_aligned_batch_of_m_grpo_without_its_copies():
    rng = random.Random(4)
    cases = [own_scores(rng, planner_and_workers(rng, lambda: 0.0)) for _ in range(CASES)]
    found = advantages("hierarchical_grpo", *cases, main="planner", deviation="population")
    same(found, map(aligned, cases))


def fold_grpo_of_the_paper(sessions):
    """For each row, return the mean of clip(R + Q_t, 0, 1) over its tokens, minus the mean of R, divided by the
    deviation of R. A session is its R and its rows, and a row is a list of Q_t."""
    rewards = [reward for reward, _ in sessions]
    divisor = statistics.stdev(rewards) + 1e-6 if len(set(rewards)) > 1 else 1.0
    mean = statistics.fmean(rewards)
    clipped = [statistics.fmean(min(max(reward + q, 0), 1) for q in row) for reward, rows in sessions for row in rows]
    return [(value - mean) / divisor for value in clipped]


def test_fold_grpo_is_the_mean_over_tokens_of_the_papers_advantage():
    """Penalties are within 0..1 and outcomes are 0 or 1, as in the paper."""
    rng = random.Random(7)
    tasks = []
    for _ in range(CASES):
        sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 6))]
        rows = [[[-rng.choice((0, 0, 0.2, 1)) for _ in range(rng.randint(1, 9))] for _ in range(n)] for n in sizes]
        tasks.append([(rng.choice((0.0, 1.0)), of_session) for of_session in rows])
    columns = [
        (task, session, reward, reward + statistics.fmean(row))
        for task, sessions in enumerate(tasks)
        for session, (reward, rows) in enumerate(sessions)
        for row in rows
    ]
    task, session, reward, scores = zip(*columns, strict=True)
    who = {"agent": ["a"] * len(task), "instance": range(len(task))}
    batch = AdvantageInput(torch.tensor(scores), task, session, **who, team_reward=torch.tensor(reward))
    batch = replace(batch, local_reward=batch.scores - batch.team_reward)
    expected = [value for sessions in tasks for value in fold_grpo_of_the_paper(sessions)]
    assert compute_advantages("fold_grpo", batch).advantages.tolist() == pytest.approx(expected, abs=2e-6)
    with pytest.raises(DataError, match="from 0 to 2"):
        compute_advantages("fold_grpo", replace(batch, team_reward=2 * batch.team_reward))
