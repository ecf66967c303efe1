"""Snapshots: when they are taken, the folders that weights go through, and what checkpoints have of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from verl_mas.config.schema import SnapshotSpec
from verl_mas.errors import DiskError
from verl_mas.trainer.policies import weight_folder
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.snapshots import Snapshot, refresh, snapshot_metrics

WEIGHTS = {f"layer.{number}": torch.full((4, 2), float(number), dtype=torch.bfloat16) for number in range(5)}


def due(**fields):
    spec = SnapshotSpec(of="main", **fields)
    return [step for step in range(13) if spec.due(step)]


def test_a_snapshot_is_due_every_so_many_steps_from_the_first():
    assert due(every=4) == [4, 8, 12]
    assert due(every=4, first=1) == [1, 5, 9]
    assert due(every=1) == list(range(1, 13))
    assert [due(every=6, first=first) for first in (2, 4, 6)] == [[2, 8], [4, 10], [6, 12]], "in turn"


def test_weights_come_out_of_a_folder_as_they_went_in(tmp_path):
    tied = WEIGHTS | {"head": WEIGHTS["layer.1"]}
    weight_folder.write(tmp_path / "past", tied.items(), step=3, file_bytes=20)
    assert len(list((tmp_path / "past").glob("*.safetensors"))) == 3, "two tensors of 16 bytes fill a file"
    found = dict(weight_folder.read(tmp_path / "past"))
    assert found.keys() == tied.keys() and all(torch.equal(found[name], tied[name]) for name in tied)
    assert weight_folder.step_of(tmp_path / "past") == 3


def test_a_second_transfer_replaces_the_first_whole_and_a_folder_without_its_record_is_not_read(tmp_path):
    weight_folder.write(tmp_path / "past", WEIGHTS.items(), step=3, file_bytes=1)
    weight_folder.write(tmp_path / "past", list(WEIGHTS.items())[:1], step=6, file_bytes=1)
    assert list(dict(weight_folder.read(tmp_path / "past"))) == ["layer.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["past"]
    (tmp_path / "past" / weight_folder.RECORD).unlink()
    with pytest.raises(FileNotFoundError):
        next(weight_folder.read(tmp_path / "past"))


def test_only_one_worker_writes_and_all_take_part(tmp_path):
    for is_master in (False, True):
        engine = weight_folder.WeightFolder(bucket_size=1 << 20, is_master=is_master)
        engine.use(str(tmp_path / "past"))
        weights = iter(WEIGHTS.items())
        asyncio.run(engine.send_weights(weights, global_steps=7))
        assert next(weights, None) is None
        assert (tmp_path / "past").exists() is is_master
    assert len(list(engine.receive_weights())) == len(WEIGHTS)


class Source(PolicyTrainer):
    """A trained policy that only writes weights: as many as the step."""

    def __init__(self):
        pass

    def write_weights(self, folder: Path, step: int) -> None:
        weight_folder.write(folder, [("w", torch.full((1,), float(step)))], step, 1)


class Engines(Snapshot):
    """A snapshot whose engine is a list of the weights that it was given."""

    def __init__(self, folder: Path, every: int, val_only: bool = False):
        self.name, self.spec = "past", SnapshotSpec(of="main", every=every)
        trainer = SimpleNamespace(default_local_dir=str(folder), val_only=val_only)
        self.config = SimpleNamespace(trainer=trainer)  # type: ignore[assignment]
        self.step, self._folder, self._stale = 0, None, False

    @property
    def weights(self) -> float | None:
        """Those that the engines would get."""
        return float(dict(weight_folder.read(self._folder))["w"]) if self._folder else None


def after(steps: int, folder: Path, **kwargs: bool) -> Engines:
    """A snapshot of every second step after a run of so many, with a checkpoint of each, saved before the refresh."""
    past = Engines(folder, 2, **kwargs)
    for step in range(1, steps + 1):
        checkpoint = folder / f"global_step_{step}"
        checkpoint.mkdir()
        past.save(str(checkpoint), None, step, None)
        refresh({"main": Source(), "past": past}, step)
    return past


def test_a_checkpoint_has_the_snapshot_in_use_and_a_later_refresh_leaves_it(tmp_path):
    past = after(5, tmp_path)
    assert (past.step, past.weights) == (4, 4.0)
    assert snapshot_metrics({"past": past}, 6) == {"policy/past/snapshot/step": 4, "policy/past/snapshot/age": 1}
    for step, expected in ((1, None), (2, None), (3, 2.0), (5, 4.0), (4, 2.0)):
        past = Engines(tmp_path, 2)
        past.load(str(tmp_path / f"global_step_{step}"), delete=False)
        assert past.weights == expected and past.step == (expected or 0)
    # As the trainer does when it starts: a resumed run refreshes where the unbroken one did.
    refresh({"main": Source(), "past": past}, 4)
    assert past.weights == 4.0


def test_an_evaluation_leaves_the_folder_of_the_run(tmp_path):
    assert after(4, tmp_path, val_only=True).weights is None
    assert not (tmp_path / "snapshots").exists()


def test_a_snapshot_that_this_node_does_not_see_is_an_error_with_a_fix(tmp_path):
    with pytest.raises(DiskError, match="all nodes of the run share"):
        Engines(tmp_path, 1).take(Mock(), 1)
