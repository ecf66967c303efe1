from __future__ import annotations

from dataclasses import dataclass, field

import pytest


@dataclass
class Trial:
    controls: dict = field(default_factory=lambda: {"shuffled": "metric"})


@dataclass
class Named:
    name: str
    trial: Trial = field(default_factory=Trial)
    needs: tuple = ()


def run(end, shuffled=0.0):
    return {
        "success": {"0": 0.1, "9": end},
        "controls": {"shuffled": {"0": 0.1, "9": shuffled}},
        "series": {"session/acc/mean": [end, None, end + 0.1]},
        "seconds": 360,
    }


@pytest.fixture
def results(evidence):
    ends = {
        "a": (0.9, 0.92, 0.91, 0.91, 0.91),
        "b": (0.5, 0.53, 0.52, 0.51, 0.52),
        "c": (0.9, 0.5, 0.7, 0.5, 0.5),
        "d": (0.5,) * 5,
    }
    arms = {arm: {seed: run(end, end / 2) for seed, end in enumerate(values)} for arm, values in ends.items()}
    return evidence("tables").Results(arms)


@pytest.mark.parametrize(
    ("number", "low", "high", "verdict"),
    [
        (("gap", "a", "b"), 0.0, None, "held"),
        (("gap", "b", "a"), 0.0, None, "refuted"),
        (("gap", "c", "b"), 0.0, None, "not shown"),
        (("gap", "a", "b"), -0.1, 0.1, "refuted"),
        (("gap", "d", "d"), -0.1, 0.1, "held"),
        (("gap", "a", "nothing"), 0.0, None, "not yet run"),
        (("success", "a"), None, 0.3, "refuted"),
        (("influence", "a"), 0.4, None, "held"),
        (("interaction", ("a", "b"), ("d", "d")), 0.3, None, "held"),
    ],
)
def test_a_verdict_needs_the_whole_interval(evidence, results, number, low, high, verdict):
    claims = evidence("claims")
    kind, *names = number
    arms = [tuple(map(Named, name)) if isinstance(name, tuple) else Named(name) for name in names]
    bounds = {name: bound for name, bound in (("low", low), ("high", high)) if bound is not None}
    claim = claims.Claim("c", getattr(claims, kind)(*arms), **bounds)
    assert claim.verdict(claim.number(results)) == verdict


@pytest.mark.parametrize(
    ("kind", "arms", "cells"),
    [
        ("gap", ["a", "b"], "0.394 ± 0.007 | held | 5 | `b` | `a b` | 1.0 |"),
        ("influence", ["a"], "0.455 ± 0.004 | held | 5 | shuffled | `a` | 0.5 |"),
        ("gain", ["a"], "0.810 ± 0.009 | held | 5 | untrained | `a` | 0.5 |"),
        ("success", ["played"], " | not yet run | 0 | shuffled | `a b played` | 1.0 |"),
    ],
)
def test_a_line_of_the_table_has_prediction_result_control_runs_and_hours(evidence, results, kind, arms, cells):
    claims = evidence("claims")
    named = [Named(name, needs=("a", "b") if name == "played" else ()) for name in arms]
    claim = claims.Claim("a is good", getattr(claims, kind)(*named), low=0.0)
    assert f"| a is good | Clues | above 0 | {cells}" in claims.claims_table(results, [("Clues", [claim])])


def test_a_gap_in_training_is_over_all_steps_that_were_logged(evidence, results):
    claims, tables = evidence("claims"), evidence("tables")
    found = claims.gap(Named("a"), Named("b"), tables.in_training("acc"))(results)
    assert found.value == pytest.approx(0.394)


@pytest.mark.parametrize("seeds", [1, 4])
def test_some_of_the_seeds_decide_nothing(evidence, results, seeds):
    claims = evidence("claims")
    for runs in results.runs.values():
        for seed in range(seeds, 5):
            del runs[seed]
    claim = claims.Claim("c", claims.gap(Named("a"), Named("b")), low=0.0)
    assert claim.verdict(claim.number(results)) == f"{seeds} of 5 seeds"
