"""Test of the benchmark of the estimators."""

from __future__ import annotations

from benchmarks.advantage import COUNTED, estimators
from verl_mas.advantage import ESTIMATORS


def test_every_estimator_is_measured_in_both_ways(capsys):
    estimators(1200)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for label in (*ESTIMATORS, *COUNTED):
        assert sum(line.startswith(f"{label} ") and line.endswith("x") for line in lines) >= 2, label
