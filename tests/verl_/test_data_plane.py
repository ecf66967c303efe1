"""The calls of TransferQueue that each function makes."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transfer_queue.metadata import extract_field_schema
from transfer_queue.utils.serial_utils import decode, encode
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import RowKey, StoredRow

PACKAGE = Path(data_plane.__file__).parents[1]


def test_only_the_data_plane_imports_transfer_queue():
    imports = re.compile(r"^\s*(?:import|from) transfer_queue\b", re.MULTILINE)
    importers = [file for file in PACKAGE.rglob("*.py") if imports.search(file.read_text())]
    assert importers == [PACKAGE / "verl_/data_plane.py"]


@pytest.fixture
def queue(monkeypatch):
    """A fake of TransferQueue."""
    queue = Mock()
    queue.kv_batch_put.side_effect = lambda keys, fields, **rest: batch(keys, [*fields.keys()])
    monkeypatch.setattr(data_plane, "tq", queue)
    return queue


def stored(tags, task, **fields):
    return StoredRow(RowKey(task, 0, 0), {"prompts": torch.zeros(2), **fields}, tags())


def batch(keys, fields=None, **extra_info):
    tags = [{"place": place} for place, _ in enumerate(keys)]
    return KVBatchMeta(partition_id="train", keys=list(keys), tags=tags, fields=fields, extra_info=extra_info)


def test_some_rows_and_all_rows_keep_their_tags_and_no_call_is_made(queue):
    rows = batch(["a", "b", "c"], ["prompts"], temperature=0.5)
    some = data_plane.select(rows, [2, 0])
    assert (some.keys, [tag["place"] for tag in some.tags]) == (["c", "a"], [2, 0])
    assert (some.fields, some.extra_info, some.partition_id) == (["prompts"], {"temperature": 0.5}, "train")
    assert data_plane.join([some, data_plane.select(rows, [1])]).keys == ["c", "a", "b"]
    assert queue.mock_calls == []


def test_written_fields_leave_the_tags_and_the_extra_info_as_they_are(queue):
    rows = batch(["a", "b"], ["prompts"], temperature=0.5)
    written = data_plane.write(rows, {"advantages": torch.zeros(2, 3)})
    assert (written.tags, written.extra_info, written.fields) == (rows.tags, {"temperature": 0.5}, ["advantages"])
    assert len(queue.mock_calls) == 1 and rows.fields == ["prompts"]


@pytest.mark.parametrize(
    "values",
    [
        [torch.arange(3), torch.arange(5), torch.arange(1)],
        [torch.ones(4, 2, dtype=torch.int16), torch.zeros(7, 2, dtype=torch.int16)],
        [torch.ones(3, 4), torch.ones(3, 6)],  # positions of images
        [torch.arange(3), torch.arange(3) * 2],
        [torch.tensor(0.5), torch.tensor(1.0)],
        ["u", {"a": 1}],
        [torch.arange(2), None],
    ],
)
def test_the_rows_of_a_column_are_for_transfer_queue_those_of_verls(values):
    def arrives(batch):
        column = batch["it"]
        rows = column.unbind(0) if isinstance(column, torch.Tensor) else list(column)
        return extract_field_schema(batch), decode(encode(rows))

    ours = arrives(TensorDict({"it": data_plane.column(values)}, len(values)))
    assert repr(ours) == repr(arrives(list_of_dict_to_tensordict([{"it": value} for value in values])))


def test_a_queue_that_is_restored_has_no_rows_that_are_trained_or_will_be_sampled_again(queue, tmp_path):
    """The queue is saved at the end of step 5, which trained on 3-0."""
    task = {"is_prompt": True, "global_steps": 4}
    listed = {
        "3-0_0_0": {},
        "4-0": {**task, "status": "finished"},
        "4-0_0_0": {},
        "4-0_1_0": {},
        "4-1": {**task, "status": "running"},
        "4-1_0_0": {},
        "5-0": {**task, "status": "pending"},
    }
    queue.kv_list.side_effect = lambda partition: {partition: listed} if queue.load_checkpoint.called else None
    data_plane.restore(tmp_path)
    queue.load_checkpoint.assert_called_once_with(tmp_path)
    queue.kv_clear.assert_called_once_with(keys=["3-0_0_0", "4-1_0_0"], partition_id="train")
    assert list(data_plane.tasks(data_plane.TRAIN)) == ["4-0", "4-1", "5-0"]


@pytest.fixture
def puts(monkeypatch):
    """The partition and keys of each call that puts rows. A call with the task `bad` fails."""
    calls = []

    async def put(keys, partition_id, **rest):
        calls.append((partition_id, keys))
        await asyncio.sleep(0.02)
        if "bad_0_0" in keys:
            raise RuntimeError("no storage")

    monkeypatch.setattr(data_plane.tq, "async_kv_batch_put", put)
    return calls


def test_tasks_that_end_while_rows_are_written_share_the_next_call(puts, tags):
    async def end(writer, after, row, partition):
        await asyncio.sleep(after)
        await writer.put([row], partition)
        assert any(str(row.key) in keys for _, keys in puts)

    async def run():
        writer = data_plane.Writer()
        train, val = data_plane.TRAIN, data_plane.VALIDATION
        ends = [(0, "a", train), (0.005, "b", train), (0.006, "c", train), (0.007, "d", val), (0.06, "e", train)]
        others = [end(writer, 0.008, stored(tags, "f", extra="x"), train)]
        await asyncio.gather(*[end(writer, after, stored(tags, uid), part) for after, uid, part in ends], *others)

    asyncio.run(run())
    trained = (["a_0_0"], ["b_0_0", "c_0_0"], ["e_0_0"], ["f_0_0"])
    assert sorted(puts) == [*(("train", keys) for keys in trained), ("val", ["d_0_0"])]


def test_many_rows_are_put_in_calls_between_which_sessions_go_on(puts, tags):
    rows = [stored(tags, f"task{number}") for number in range(2 * data_plane.ROWS_OF_A_CALL + 1)]
    asyncio.run(data_plane.Writer().put(rows, data_plane.TRAIN))
    assert [len(keys) for _, keys in puts] == [data_plane.ROWS_OF_A_CALL, data_plane.ROWS_OF_A_CALL, 1]


def test_rows_of_policies_that_see_images_and_of_others_are_put_in_calls_of_their_own(puts, tags):
    shapes = {"text": (5,), "seen": (4, 5), "longer": (4, 7), "other": (6,)}
    rows = [stored(tags, name, position_ids=torch.zeros(shape)) for name, shape in shapes.items()]
    asyncio.run(data_plane.Writer().put(rows, data_plane.TRAIN))
    assert [keys for _, keys in puts] == [["text_0_0", "other_0_0"], ["seen_0_0", "longer_0_0"]]


def test_a_call_that_fails_fails_every_task_in_it_and_no_other_one(puts, tags):
    async def run():
        writer = data_plane.Writer()
        ends = [writer.put([stored(tags, uid)], data_plane.TRAIN) for uid in ("bad", "beside")]
        first = await asyncio.gather(*ends, return_exceptions=True)
        await writer.put([stored(tags, "later")], data_plane.TRAIN)
        return first

    assert [str(error) for error in asyncio.run(run())] == ["no storage"] * 2


def test_workers_read_the_tensors_and_what_is_named_without_tags(monkeypatch):
    names = "prompts", "rm_scores", "raw_prompt", "images"
    schema = {name: {"is_non_tensor": number > 1} for number, name in enumerate(names)}
    client = SimpleNamespace(kv_retrieve_meta=lambda keys, partition_id: SimpleNamespace(field_schema=schema))
    monkeypatch.setattr(data_plane.tq, "get_client", lambda: client)
    rows = batch(["a", "b"], temperature=0.5)
    sent = data_plane.for_workers(rows, also=["images", "absent"], without=["rm_scores", "absent"])
    assert (sent.keys, sent.tags, sent.fields) == (["a", "b"], [{}, {}], ["prompts", "images"])
    assert sent.extra_info is rows.extra_info
    assert rows.fields is None and rows.tags[1] == {"place": 1}


def test_of_the_tasks_that_are_asked_for_those_that_ended_are_counted(monkeypatch):
    asked = []

    def retrieve(**given):
        asked.append(given)
        tags = [{}, *({"status": status} for status in ("pending", "running", "finished", "failure"))]
        return SimpleNamespace(custom_meta=tags)

    monkeypatch.setattr(data_plane.tq, "get_client", lambda: SimpleNamespace(kv_retrieve_meta=retrieve))
    assert data_plane.ended(["a", "b"]) == 2
    assert asked == [{"keys": ["a", "b"], "partition_id": "train"}]
