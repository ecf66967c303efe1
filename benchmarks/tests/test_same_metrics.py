from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def same_metrics(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    yield importlib.import_module("benchmarks.same_metrics")
    sys.modules.pop("benchmarks.same_metrics", None)


BEFORE = {1: {"actor/loss": 0.25, "timing_s/step": 3.0, "reward": float("nan")}}


def test_rounding_and_times_are_not_differences(same_metrics):
    after = {1: {"actor/loss": 0.25 + 1e-7, "timing_s/step": 9.0, "reward": float("nan"), "perf/mfu": 1.0}}
    assert same_metrics.differences(BEFORE, after) == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({1: {"actor/loss": 0.26, "reward": float("nan")}}, "actor/loss 0.25 and 0.26"),
        ({1: {"actor/loss": 0.25, "reward": 1.0}}, "reward nan and 1.0"),
        ({1: {"actor/loss": 0.25}}, "reward only before"),
        ({1: {**BEFORE[1], "new": 1.0}}, "new only after"),
        ({}, "steps [1] and []"),
    ],
)
def test_another_value_key_or_step_is_a_difference(same_metrics, after, message):
    (found,) = same_metrics.differences(BEFORE, after)
    assert message in found
