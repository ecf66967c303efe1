"""Agents that exchange their policies, and are scored at their own temperatures, in a real run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import chain

import pytest
import torch

from verl_mas.sessions.reader import read_sessions

pytestmark = pytest.mark.e2e


def test_agents_exchange_their_policies_by_the_step_and_both_policies_learn(train_team, weights_of, tmp_path):
    done = train_team(
        tmp_path / "run",
        "Pair",
        "mas.policies={a:{},b:{}}",
        "mas.agents={writer:{policy:a},copier:{policy:b,sampling:{temperature:0.5}}}",
        "mas.swap={agents:[writer,copier],every:1}",
        "trainer.total_training_steps=2",
        "trainer.save_freq=1",
        "trainer.test_freq=2",
        "algorithm.rollout_correction.rollout_is=token",
        f"trainer.rollout_data_dir={tmp_path}/generations",
    )
    played = defaultdict(set)
    records = done.folder / "checkpoints" / "trajectories"
    for session in chain(read_sessions(records), read_sessions(records, validate=True)):
        for act in session["acts"]:
            played[session["step"], session["partition"], act["agent"]].add(act["policy"])
    assert played == {
        (1, "train", "writer"): {"a"},
        (1, "train", "copier"): {"b"},
        (2, "train", "writer"): {"b"},
        (2, "train", "copier"): {"a"},
        # Validation has the configured policies.
        (2, "val", "writer"): {"a"},
        (2, "val", "copier"): {"b"},
    }
    for step in (1, 2):
        metrics = done.steps[step]
        for policy in "ab":
            assert metrics[f"policy/{policy}/rows/real"] == metrics["agent/writer/acts"] == 16
            assert metrics[f"policy/{policy}/training/rollout_probs_diff_max"] < 1e-5
            assert metrics[f"policy/{policy}/rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "generations" / "2.jsonl").read_text().splitlines()]
    assert Counter(line["agent"] for line in lines) == {"writer": 16, "copier": 16}
    for policy in "ab":
        before, after = (weights_of(done.checkpoint(step) / policy) for step in (1, 2))
        assert any(not torch.equal(before[name], after[name]) for name in before)
