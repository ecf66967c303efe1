from __future__ import annotations

import pytest


def test_the_interval_is_students(evidence):
    found = evidence("intervals").mean([0.7, 0.8, 0.9])
    assert found.value == pytest.approx(0.8) and found.half == pytest.approx(4.303 * 0.1 / 3**0.5)
    assert str(found) == "0.800 ± 0.248"


def test_one_seed_has_no_interval(evidence):
    assert str(evidence("intervals").mean([0.7])) == "0.700"


def test_a_spike_is_three_times_the_median_before_it(evidence):
    spikes = evidence("intervals").spikes
    assert spikes([1, 1, 1, 1, 1, 4, 2, 1, 1, 1]) == pytest.approx(0.2)
    assert spikes([9, 1, 1, 1, 1]) == 0.0


def test_the_second_moment_is_of_the_norms(evidence):
    assert evidence("intervals").second_moment([1.0, 3.0]) == 5.0


def test_a_mean_factor_is_geometric(evidence):
    factor = evidence("intervals").factor
    assert factor([0.5]) == "0.50" and factor([0.5, 2.0]).startswith("1.00 (0.00 to ")
