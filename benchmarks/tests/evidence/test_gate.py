"""The gate fails if new runs are worse than the stored runs."""

import json

import pytest


def run(reward, success):
    return {"series": {"agent/a/reward/score": [reward, None, reward]}, "success": {"0": 0.1, "8": success}}


@pytest.mark.parametrize(
    ("new", "missed"),
    [
        ([run(0.5, 0.9), run(0.4, 0.8)], []),
        ([run(-0.1, 0.9), run(-0.2, 0.8)], ["reward over all steps"]),
        ([run(0.5, 0.1), run(0.5, 0.2)], ["success at the end"]),
        ([run(0.5, 0.9), run(0.5, 0.1)], []),
        ([run(2.0, 2.0), run(2.0, 2.0)], []),
    ],
)
def test_what_is_below_the_band_of_the_stored_seeds_is_named(evidence, new, missed):
    stored = [run(0.4, 0.8), run(0.5, 0.9), run(0.6, 0.85)]
    assert evidence("gate").below("arm", stored, new) == missed


def test_seeds_that_agree_by_chance_leave_a_band(evidence):
    assert 0.7 < evidence("gate").lowest([1.0, 1.0, 1.0]) < 1.0


def test_every_gated_arm_has_stored_runs_of_its_settings(evidence):
    gate, runs = evidence("gate"), evidence("runs")
    for name in gate.GATED:
        arm = gate.ARMS[name]
        assert sum(runs.finished(gate.Piece(arm, seed)) for seed in range(arm.seeds)) >= 3, name


def test_the_arms_that_miss_their_bands_are_written_down_for_a_bisection(evidence, monkeypatch, tmp_path):
    gate = evidence("gate")
    good = json.loads((gate.RESULTS / "guide_shared-0.json").read_text())
    bad = {**good, "success": {"8": 0.0}}
    monkeypatch.setattr(gate, "MISSED", tmp_path / "missed.txt")
    monkeypatch.setattr(gate.Runner, "measured", lambda self, piece: bad if piece.arm.name == "clues_shared" else good)
    assert gate.main(["clues_shared", "guide_shared"]) == 1
    assert gate.MISSED.read_text() == "clues_shared"
