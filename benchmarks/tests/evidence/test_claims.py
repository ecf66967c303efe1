from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass
class Named:
    name: str


def run(end, shuffled=0.0):
    return {"success": {"0": 0.1, "9": end}, "controls": {"shuffled": {"0": 0.1, "9": shuffled}}}


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


def test_the_table_of_claims_has_the_prediction_beside_the_result(evidence, results):
    claims = evidence("claims")
    claim = claims.Claim("a is above b", claims.gap(Named("a"), Named("b")), low=0.0)
    text = claims.claims_table(results, [("Clues", [claim])])
    assert "| a is above b | Clues | above 0 | 0.394 ± 0.007 | held |" in text


@pytest.mark.parametrize("seeds", [1, 4])
def test_some_of_the_seeds_decide_nothing(evidence, results, seeds):
    claims = evidence("claims")
    for runs in results.runs.values():
        for seed in range(seeds, 5):
            del runs[seed]
    claim = claims.Claim("c", claims.gap(Named("a"), Named("b")), low=0.0)
    assert claim.verdict(claim.number(results)) == f"{seeds} of 5 seeds"
