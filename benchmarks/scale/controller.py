"""Measure TransferQueue's controller as the rows of a step grow, and the savings by two changes to it.

    python -m benchmarks.scale.controller [--rows 1k,4k,16k]

Tasks of 16 rows are put one after the other, as agent-loop workers do, with the tags of real rows and one small field.
Then this process looks once for finished tasks, as the trainer does, and clears the rows. The second step reuses the
indexes of the first. Tags and calls are those of `verl_mas.verl_.data_plane`; the controller is a separate process.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict, deque
from collections.abc import Iterator

import torch
import transfer_queue as tq
from transfer_queue import controller as module
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from benchmarks.scale.curve import MIB, ratio, show, sizes
from benchmarks.scale.queue import CONTROLLER, Queue, queue
from benchmarks.scale.team import tags_of
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import SCORES, RowKey

TASK = 16  # rows


class Patched(CONTROLLER):  # type: ignore[misc,valid-type]
    """The controller with two changes proposed to TransferQueue: capacity that doubles, and indexes in a deque."""

    def create_partition(self, partition_id: str) -> bool:
        # Replace the list, because it moves all remaining entries whenever indexes are taken from its front.
        if not isinstance(self.index_manager.reusable_indexes, Reusable):
            self.index_manager.reusable_indexes = Reusable()
        module.DataPartitionStatus.ensure_samples_capacity = _doubling
        made: bool = super().create_partition(partition_id)
        return made


class Reusable(deque[int]):
    """A deque with the two list operations that the controller uses to take indexes from the front. Their time is
    proportional to the number of indexes taken."""

    def __getitem__(self, place: slice) -> list[int]:  # type: ignore[override]
        return [super(Reusable, self).__getitem__(i) for i in range(place.stop)]

    def __delitem__(self, place: slice) -> None:  # type: ignore[override]
        for _ in range(place.stop):
            self.popleft()


_exact = module.DataPartitionStatus.ensure_samples_capacity


def _doubling(self: module.DataPartitionStatus, required: int) -> None:
    """Double the capacity when it is too small. Growth then copies a row a few times in all, not once per put; in
    exchange, up to half of the capacity is unused."""
    if required > self.allocated_samples_num:
        _exact(self, max(required, 2 * self.allocated_samples_num))


def tasks(rows: int) -> Iterator[data_plane.Rows]:
    for task in range(rows // TASK):
        keys = [str(RowKey(f"1-{task}", i // 2, i % 2)) for i in range(TASK)]
        yield data_plane.KVBatchMeta(
            partition_id=data_plane.TRAIN, keys=keys, tags=[tags_of(task * TASK + i) for i in range(TASK)]
        )


def step(rows: int, made: Queue) -> dict[str, float]:
    """Run a step. Return the controller's times per row to put and to clear, the times of the controller and the
    driver for each kind of look, and the controller's memory."""
    written = {SCORES: torch.zeros(TASK, 1)}
    found: dict[str, float] = {}
    uids = [f"1-{task}" for task in range(rows // TASK)]
    data_plane.announce(uids, data_plane.TRAIN, 1)
    made.take()
    for task in tasks(rows):
        tq.kv_batch_put(
            keys=task.keys,
            partition_id=task.partition_id,
            fields=data_plane.TensorDict(written, batch_size=TASK),
            tags=task.tags,
        )
    found["put, us per row"] = made.take()["controller"] / rows * 1e6
    looks = {"at all rows": lambda: data_plane.listed(data_plane.TRAIN), "at tasks": lambda: data_plane.ended(uids)}
    for what, look in looks.items():
        begin = time.process_time()
        look()
        found[f"a look {what}, driver, ms"] = 1e3 * (time.process_time() - begin)
        used = made.take()
        found[f"a look {what}, controller, ms"] = 1e3 * used["controller"]
        found[f"a look {what}, MiB"] = used["bytes"] / MIB
    keys = list(data_plane.listed(data_plane.TRAIN))
    made.take()
    tq.kv_clear(keys=keys, partition_id=data_plane.TRAIN)
    found["clear, us per row"] = made.take()["controller"] / rows * 1e6
    found["controller, MiB"] = made.controller.mib
    return found


def measured(rows: list[int], controller: type) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for count in rows:
        with queue(controller) as made:
            for number in ("first step", "second step"):
                for name, value in step(count, made).items():
                    curves[f"{number}: {name}"][count] = value
    return curves


def balancer(servers: list[int], requests: int = 2000) -> dict[str, dict[int, float]]:
    """Measure how long verl's load balancer takes to choose an engine for the first request of a session. In a run, one
    process makes this choice for all sessions."""
    curve = {}
    for count in servers:
        balances = GlobalRequestLoadBalancer({str(number): None for number in range(count)})
        begin = time.process_time()
        for number in range(requests):
            balances.acquire_server(str(number))
        curve[count] = 1e6 * (time.process_time() - begin) / requests
    return {"choose an engine, us": curve}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=sizes, default=sizes("1k,4k,16k"))
    rows = parser.parse_args(arguments).rows
    now, patched = measured(rows, CONTROLLER), measured(rows, Patched)
    show("controller of TransferQueue", now)
    show("controller with the proposed changes", patched)
    show("verl's balancer by engines", balancer([8, 64, 512]))
    for step_of in ("first step", "second step"):
        name = f"{step_of}: put, us per row"
        for what, curve in (("as it is", now[name]), ("patched", patched[name])):
            ratio(f"{name}, {what}, at {rows[-1]:,} rows", curve[rows[-1]], f"at {rows[0]:,}", curve[rows[0]])


if __name__ == "__main__":
    main()
