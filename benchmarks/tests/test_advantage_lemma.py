"""Lemma 4.2 of Dr. MAS holds for real gradients. The tests repeat the benchmark's measurement at a few points."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCHMARK = Path(__file__).parents[1] / "advantage_lemma.py"


@pytest.fixture(scope="module")
def lemma():
    return SimpleNamespace(**runpy.run_path(str(BENCHMARK)))


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 1.0), (0.0, 0.25), (2.0, 0.5), (1.0, 2.0)])
def test_the_gradients_second_moment_is_what_the_lemma_says(lemma, mu, sigma):
    generator = torch.Generator().manual_seed(1)
    policy, point = lemma.Policy(generator), lemma.Point(mu, sigma)
    found = lemma.measure(policy, point, generator, sessions=8192, batches=16)
    assert found["team_grpo"].errors_off < 3
    assert found["agent_grpo"].errors_off < 3
    assert found["inflation"].errors_off < 3
    # The tolerance is small enough to distinguish the two baselines wherever they differ by the lemma.
    assert found["team_grpo"].error < 0.05 * found["team_grpo"].lemma


def test_the_agents_own_baseline_makes_the_second_moment_the_same_everywhere(lemma):
    policy = lemma.Policy(torch.Generator().manual_seed(1))
    points = [lemma.Point(mu, sigma) for mu in (0.0, 3.0) for sigma in (0.25, 2.0)]
    own = {round(lemma.lemma(policy, point, own_baseline=True), 9) for point in points}
    assert len(own) == 1
    assert lemma.lemma(policy, points[-1], own_baseline=False) > 10 * own.pop()
