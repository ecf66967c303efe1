"""All traffic with TransferQueue. To use another data plane, replace this module."""

import asyncio
import warnings
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import assign_non_tensor_data

from verl_mas.verl_.row import FAILURE, FINISHED, GLOBAL_STEPS, IS_PROMPT, PENDING, STATUS, RowKey, StoredRow, TagValues

# Rows per call. A call blocks the worker's event loop, and so its sessions, for about a millisecond per row.
ROWS_OF_A_CALL = 32

TRAIN, VALIDATION = "train", "val"  # verl's partitions
# Silence torch's warning that nested tensors are a prototype. No other code gets the strided nested tensors of this
# module, because TransferQueue unpacks them.
warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage", UserWarning)


class Rows(Protocol):
    """Rows by key and tags, without their tensors: the part of TransferQueue's KVBatchMeta that we use."""

    keys: list[str]
    tags: list[TagValues]
    partition_id: str
    fields: list[str] | None
    extra_info: dict[str, object]

    def __len__(self) -> int: ...

    def reorder(self, indexes: list[int]) -> None: ...


# -- rows by key and tags: no tensor moves --------------------------------------------------------------------


def select(rows: Rows, places: Sequence[int]) -> Rows:
    """Select the rows at these indices. They share their tags with `rows`."""
    selected = _rows(rows.partition_id, [rows.keys[i] for i in places], [rows.tags[i] for i in places])
    selected.fields, selected.extra_info = rows.fields, dict(rows.extra_info or {})
    return selected


def join(parts: Sequence[Rows]) -> Rows:
    """Concatenate the rows of all parts, in order, with copies of their tags."""
    keys = [key for part in parts for key in part.keys]
    return _rows(parts[0].partition_id, keys, [dict(tag) for part in parts for tag in part.tags])


def _rows(partition: str, keys: list[str], tags: list[TagValues]) -> Rows:
    # KVBatchMeta would deep-copy the tags, which takes 5 ms for 256 rows.
    rows: Rows = KVBatchMeta(partition_id=partition, keys=keys, tags=[{} for _ in keys])
    rows.tags = tags
    return rows


def for_workers(rows: Rows, also: Collection[str] = (), without: Collection[str] = ()) -> Rows:
    """Return the rows for a worker, without tags. Their fields are all tensor fields that are not in `without`, and all
    fields in `also`.

    Workers unpack every field into rows twice. If the columns of the dataset were sent too, unpacking them would be
    most of this work.
    """
    schema = tq.get_client().kv_retrieve_meta(keys=rows.keys[:1], partition_id=rows.partition_id).field_schema
    sent = copy(rows)
    unread = {*without, *(name for name, field in schema.items() if field["is_non_tensor"])}.difference(also)
    sent.fields = [name for name in schema if name not in unread]
    sent.tags = [{} for _ in rows.keys]
    return sent


# -- calls of the trainer -----------------------------------------------------------------------------------


def read(rows: Rows, fields: Sequence[str]) -> TensorDict:
    return tq.kv_batch_get(keys=rows.keys, partition_id=rows.partition_id, select_fields=list(fields))


def write(rows: Rows, fields: Mapping[str, Tensor]) -> Rows:
    """Write fields of rows. The returned rows list these fields; `rows` itself is not changed."""
    written: Rows = tq.kv_batch_put(
        keys=rows.keys, partition_id=rows.partition_id, fields=TensorDict(dict(fields), batch_size=len(rows))
    )
    written.extra_info, written.tags = rows.extra_info, rows.tags
    return written


def clear(rows: Rows) -> None:
    tq.kv_clear(keys=rows.keys, partition_id=rows.partition_id)


def announce(uids: Sequence[str], partition: str, step: int) -> None:
    """Register tasks before the rollout gets them, so that the replay buffer waits for them."""
    tag = {IS_PROMPT: True, STATUS: PENDING, GLOBAL_STEPS: step}
    tq.kv_batch_put(keys=list(uids), partition_id=partition, tags=[dict(tag) for _ in uids])


def tasks(partition: str) -> dict[str, TagValues]:
    """The tags of all tasks in a partition, by uid. A task stays in its partition until its rows are sampled."""
    return {key: tag for key, tag in listed(partition).items() if tag.get(IS_PROMPT)}


def ended(uids: Sequence[str]) -> int:
    """Count the training tasks among `uids` that have ended. Unlike `listed`, this call does not read rows."""
    meta = tq.get_client().kv_retrieve_meta(keys=list(uids), partition_id=TRAIN)
    return sum(tag.get(STATUS) in (FINISHED, FAILURE) for tag in meta.custom_meta)


def listed(partition: str) -> dict[str, TagValues]:
    """The tags of all tasks and rows in a partition, by key."""
    items: dict[str, dict[str, TagValues]] = tq.kv_list(partition) or {}
    return items.get(partition, {})


# -- checkpoints ----------------------------------------------------------------------------------------------


def save(folder: Path) -> int:
    """Save all tasks and rows in files of TransferQueue. Returns the number of training tasks."""
    tq.save_checkpoint(folder)
    return len(tasks(TRAIN))


def restore(folder: Path) -> None:
    """Load the tasks and rows written by `save`, except rows that are not needed.

    The files still contain the rows of the step that was saved, because a step's rows are cleared after its save. A
    task that had not finished runs again from its start, so its rows are not needed either.
    """
    tq.load_checkpoint(folder)
    if needless := without_finished_task(listed(TRAIN)):
        tq.kv_clear(keys=needless, partition_id=TRAIN)


def without_finished_task(listed: Mapping[str, TagValues]) -> list[str]:
    """The keys of the rows whose task has not finished, or is missing."""
    finished = {key for key, tag in listed.items() if tag.get(IS_PROMPT) and tag[STATUS] == FINISHED}
    return [key for key, tag in listed.items() if not tag.get(IS_PROMPT) and RowKey.parse(key).uid not in finished]


def prompts(uids: Sequence[str], step: int) -> TensorDict:
    """Read the prompts of these tasks, tagged with `step`, to dispatch them again."""
    batch: TensorDict = tq.kv_batch_get(keys=list(uids), partition_id=TRAIN)
    assign_non_tensor_data(batch, GLOBAL_STEPS, step)
    return batch


# -- calls of the rollout -----------------------------------------------------------------------------------


async def set_status(uid: str, partition: str, status: str) -> None:
    """Set the status of a task."""
    await tq.async_kv_put(key=uid, partition_id=partition, tag={STATUS: status})


async def put(rows: Sequence[StoredRow], partition: str) -> None:
    await tq.async_kv_batch_put(
        keys=[str(row.key) for row in rows],
        fields=TensorDict({name: column([row.fields[name] for row in rows]) for name in rows[0].fields}, len(rows)),
        tags=[row.tags.as_dict() for row in rows],
        partition_id=partition,
    )


def column(values: Sequence[object]) -> Tensor | NonTensorStack:
    """Make the column of a field as verl's `list_of_dict_to_tensordict` does, but with strided nested tensors.

    Each row is read from its columns five times before it is trained on. With the strided layout, a read takes a tenth
    of the time.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        return NonTensorStack(*values)
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    return torch.nested.as_nested_tensor(tensors, layout=torch.strided)


# The partition of rows, and the names of their fields with the numbers of dimensions. Position ids of a policy that
# reads images have one more dimension than other position ids, so they cannot share a column.
_Kind: TypeAlias = tuple[str, tuple[tuple[str, int | None], ...]]


class Writer:
    """Collects the rows of tasks that end at about the same time, and writes these rows in few calls.

    The fixed time of a call is as long as the additional time for a hundred rows.
    """

    def __init__(self) -> None:
        self._writing = asyncio.Lock()
        # The open batches: the kind that all rows of a call must have -> the rows, and the asyncio task that will write
        # them.
        self._open: dict[_Kind, tuple[list[StoredRow], asyncio.Future[None]]] = {}

    async def put(self, rows: Sequence[StoredRow], partition: str) -> None:
        """Add rows to the open batches; return when they are written."""
        written = set()
        for row in rows:
            kind = partition, tuple((name, _dimensions(value)) for name, value in row.fields.items())
            if kind not in self._open:
                batch: list[StoredRow] = []
                self._open[kind] = batch, asyncio.ensure_future(self._write(kind, batch))
            self._open[kind][0].append(row)
            written.add(self._open[kind][1])
        await asyncio.gather(*map(asyncio.shield, written))

    async def _write(self, kind: _Kind, batch: Sequence[StoredRow]) -> None:
        async with self._writing:
            # From here on, new rows go into the next batch.
            del self._open[kind]
            for start in range(0, len(batch), ROWS_OF_A_CALL):
                await put(batch[start : start + ROWS_OF_A_CALL], kind[0])


def _dimensions(value: object) -> int | None:
    return value.dim() if isinstance(value, Tensor) else None
