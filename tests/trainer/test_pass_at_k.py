from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.trainer.pass_at_k import interval, ks, mean_of_sets, pass_at_k, report


@given(st.integers(1, 8), st.data())
def test_it_is_the_share_of_draws_with_a_solution(n, data):
    solved, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [1] * solved + [0] * (n - solved)
    draws = [max(draw) for draw in combinations(outcomes, k)]
    assert pass_at_k(n, solved, k) == pytest.approx(sum(draws) / comb(n, k))


def test_it_is_unbiased():
    rng, rate, n, k = np.random.default_rng(0), 0.3, 10, 4
    estimates = [pass_at_k(n, int(rng.binomial(n, rate)), k) for _ in range(20_000)]
    assert np.mean(estimates) == pytest.approx(1 - (1 - rate) ** k, abs=0.005)


def test_more_draws_than_sessions_are_refused():
    with pytest.raises(ValueError, match="k=3 must be between 1 and the number of sessions, 2"):
        pass_at_k(2, 1, 3)


def test_the_interval_covers_the_true_value_at_its_level():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        low, high = interval(rng.random(60), seed=trial)
        covered += low <= 0.5 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_k_goes_up_by_doubling():
    assert ks(1) == [1] and ks(8) == [1, 2, 4, 8] and ks(6) == [1, 2, 4, 6]


def test_the_report_takes_every_k_that_each_task_has_sessions_for():
    found = dict(report([[True, False, False, False], [False] * 5]))
    assert found["pass@1"] == pytest.approx(0.125)
    assert found["pass@4"] == pytest.approx(0.5)
    assert found["pass@4/low"] <= 0.5 <= found["pass@4/high"]
    assert "pass@5" not in found
    assert dict(report([])) == {}


def test_a_graded_score_has_a_mean_with_an_interval_of_its_own():
    found = dict(report([[0.5, 0.7], [0.0, 0.2], [1.0, 0.6]]))
    assert found["mean@2"] == pytest.approx(0.5) and found["pass@1"] == pytest.approx(1 / 6)
    assert found["mean@2/low"] == pytest.approx(0.1) and found["mean@2/high"] == pytest.approx(0.8)


def test_of_binary_scores_the_mean_and_its_interval_are_those_of_pass_at_1():
    found = dict(report([[True, False], [True, True], [False, False]]))
    assert all(found[f"mean@2{part}"] == found[f"pass@1{part}"] for part in ("", "/low", "/high"))


def test_the_mean_of_sets_counts_each_set_once_and_takes_what_all_have():
    reports = [dict(report([[1.0, 0.0]] * 9)), dict(report([[1.0, 1.0]]))]
    assert mean_of_sets(reports) == {"mean@2": 0.75, "pass@1": 0.75, "pass@2": 1.0}
    assert mean_of_sets(reports[:1]) == {}
    assert mean_of_sets([{"mean@2": 1.0, "pass@1": 1.0}, {"mean@4": 0.0, "pass@1": 0.0}]) == {"pass@1": 0.5}
