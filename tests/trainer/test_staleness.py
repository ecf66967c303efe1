"""Staleness is counted in updates since the weights that sampled a token."""

from __future__ import annotations

import math

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from transfer_queue import KVBatchMeta

from verl_mas.trainer import staleness as module
from verl_mas.trainer.staleness import TokenCount, clip_limits, row_metrics, versions_of
from verl_mas.trainer.step import PolicyRows
from verl_mas.verl_ import data_plane

STEP = 6  # trains on top of version 5


def nested(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_rows_are_counted_by_their_oldest_token(tags):
    versions = [(5, 5), (4, 5), (4, 4), (1, 5)]
    rows = [tags("solver", min_global_steps=low, max_global_steps=high) for low, high in versions]
    extras = [{}, {"aborts": 1}, {"aborts": 2}, {}]
    assert row_metrics(rows, extras, STEP) == {
        "staleness/mean": 1.5,
        "staleness/max": 4.0,
        "staleness/0/rows": 0.25,
        "staleness/1/rows": 0.5,
        "staleness/4/rows": 0.25,
        "staleness/mixed_versions": 0.5,
        "staleness/aborted": 0.5,
        # The third row was aborted before it had a token, or on the same weights.
        "staleness/continued": 0.25,
    }


def test_high_staleness_is_one_class_and_an_engine_that_counts_no_versions_has_none(tags):
    assert row_metrics([tags("solver", min_global_steps=None, max_global_steps=None)], [{}], STEP) == {}
    rows = [tags("solver", min_global_steps=low, max_global_steps=low) for low in (0, 10, 17)]
    found = row_metrics(rows, [{}] * 3, 30)
    assert found["staleness/8/rows"] == 1.0 and found["staleness/max"] == 29.0


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([[2, 3], [3, 4]], [3, 3, 4, 4, 4]),
        ([[2, 3], [9, 4]], [3, 3, 4, 4, 4]),  # cut to the row
        ([], [1, 1, 1, 1, 1]),  # verl's tools keep the oldest only
        ([[2, 3]], [1, 1, 1, 1, 1]),
    ],
)
def test_every_sampled_token_has_a_version(tags, listed, expected):
    found = versions_of({"versions": listed}, tags("solver", min_global_steps=1), 5)
    assert found.tolist() == expected


@pytest.fixture
def part(monkeypatch, tags):
    """Two rows and padding. The first has tokens of versions 4 and 5 around a token of a tool; one was rejected."""
    versions = [(4, 5), (5, 5), (0, 0)]
    values = [tags("solver", min_global_steps=low, max_global_steps=high).as_dict() for low, high in versions]
    values[2]["is_padding"] = True
    keys = ["3-0_0_0", "3-0_1_0", "3-0_1_0_pad"]
    extras = {keys[0]: {"versions": [[2, 4], [1, 5]], "aborts": 1}, keys[1]: {"versions": [[2, 5]]}}
    half, double = math.log(0.5), math.log(2)
    data = {
        "loss_mask": nested([1, 1, 0, 1], [1, 1], [1]),
        "response_mask": nested([1, 0, 0, 1], [1, 1], [0]),
        "old_log_probs": nested([half, 9.0, 9.0, 3 * double], [0.0, 0.0], [9.0]),
        "rollout_log_probs": nested([0.0, 0.0, 0.0, double], [0.0, 0.0], [0.0]),
    }

    def read(rows, fields):
        assert fields == ["extra_fields"]
        return TensorDict(
            {"extra_fields": NonTensorStack(*[NonTensorData(extras[key]) for key in rows.keys])}, len(rows)
        )

    monkeypatch.setattr(data_plane, "read", read)
    return PolicyRows(KVBatchMeta(partition_id="train", keys=keys, tags=values), data=TensorDict(data, 3))


def test_weights_are_by_the_version_of_each_token_that_is_trained_on(part):
    correction = OmegaConf.create({"rollout_is": "token", "rollout_is_threshold": 2.0})
    found = module.metrics({"solver": part}, {"solver": correction}, STEP)
    own = {key.removeprefix("policy/solver/staleness/"): value for key, value in found.items()}
    assert own["1/tokens"] == 0.25 and own["0/tokens"] == 0.75
    assert own["1/weight"] == pytest.approx(0.5)
    assert own["0/weight"] == pytest.approx((4 + 1 + 1) / 3)
    assert own["1/kl"] == pytest.approx(0.5 - 1 - math.log(0.5))
    assert own["0/kl"] == pytest.approx((4 - 1 - math.log(4)) / 3)
    assert own["0/clipped"] == pytest.approx(1 / 3) and own["1/clipped"] == 0
    assert own["mean"] == 0.5 and own["aborted"] == own["continued"] == 0.5
    assert found["session/mixed_versions"] == 0.5


def test_without_a_correction_nothing_is_clipped_and_without_log_probs_only_rows_are_counted(part):
    null = OmegaConf.create({"rollout_is": None, "rollout_is_threshold": 2.0})
    found = module.metrics({"solver": part}, {"solver": null}, STEP)
    assert "policy/solver/staleness/0/weight" in found and "policy/solver/staleness/0/clipped" not in found
    del part.data["old_log_probs"]
    found = module.metrics({"solver": part}, {}, STEP)
    assert found["policy/solver/staleness/mean"] == 0.5
    assert not any(key.endswith(("weight", "kl", "clipped")) for key in found)


@pytest.mark.parametrize(("threshold", "limits"), [(2.0, (0.0, 2.0)), ("0.5_5.0", (0.5, 5.0)), ("3", (0.0, 3.0))])
def test_the_limits_are_those_of_verl(threshold, limits):
    found = clip_limits(OmegaConf.create({"rollout_is": "token", "rollout_is_threshold": threshold}))
    assert found == limits


def test_tokens_that_are_neither_trained_nor_waiting_are_lost(part):
    count = TokenCount()
    tags = {"trainable": True, "response_len": 7}
    left = {"3-0_0_0": tags, "4-0_0_0": tags, "4-0_0_1": {**tags, "trainable": False}, "5-0": {"status": "running"}}
    first = count.add(20, {"solver": part}, left, part.batch)
    expected = {"sampled": 20, "trained": 4, "waiting": 7, "lost": 9}
    assert first == {f"async/tokens/{name}": value for name, value in expected.items()}
    assert count.add(5, {}, {}, part.batch)["async/tokens/lost"] == 21
    resumed, kept = TokenCount(), {"trainable": True, "response_len": 4}
    resumed.keep([kept, {"trainable": False, "response_len": 9}, {"status": "finished"}])
    assert resumed.add(0, {"solver": part}, {}, part.batch)["async/tokens/lost"] == 0, "a checkpoint kept them"
