"""Snapshots: when they are taken, and the folders through which weights are transferred."""

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import pytest
import torch

from verl_mas.config.schema import SnapshotSpec
from verl_mas.errors import DiskError
from verl_mas.trainer.policies import weight_folder
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.snapshots import Snapshot, refresh

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


@pytest.fixture
def snapshot(tmp_path):
    """A snapshot of every step, without engines."""

    def make(*, val_only):
        made = object.__new__(Snapshot)
        made.name, made.spec = "past", SnapshotSpec(of="main", every=1)
        made.config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path), val_only=val_only))
        return made

    return make


def test_an_evaluation_leaves_the_folder_of_the_run(snapshot):
    source = create_autospec(PolicyTrainer, instance=True)
    refresh({"main": source, "past": snapshot(val_only=True)}, 1)
    source.write_weights.assert_not_called()


def test_a_snapshot_with_the_weights_of_the_models_files_is_saved_and_loaded_without_weights(snapshot, tmp_path):
    made = snapshot(val_only=False)
    made.step, made._folder, made._stale = 0, None, False  # noqa: SLF001
    made.save(str(tmp_path), None, 3, None)
    made.load(str(tmp_path), delete=False)
    assert not made._stale and weight_folder.step_of(tmp_path / "past") == 0  # noqa: SLF001


def test_a_snapshot_that_this_node_does_not_see_is_an_error_with_a_fix(snapshot):
    with pytest.raises(DiskError, match="all nodes of the run share"):
        snapshot(val_only=False).take(Mock(), 1)
