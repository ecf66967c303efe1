"""The order of tasks, and what ends a wait: verl's loop over a list of tasks in memory."""

from __future__ import annotations

import pytest
import verl.trainer.ppo.v1.replay_buffer as verl_buffer
from omegaconf import OmegaConf

from verl_mas.errors import EngineLost, SessionsFailed
from verl_mas.trainer.modes import asynchronous
from verl_mas.trainer.modes.asynchronous import FAILED_BATCHES, TeamBuffer


class Queue:
    """TransferQueue's tags."""

    def __init__(self):
        self.partitions = {"train": {}, "val": {}}

    def task(self, uid, step, status="finished", rows=1, partition="train"):
        items = self.partitions[partition]
        items[uid] = {"is_prompt": True, "status": status, "global_steps": step}
        items.update({f"{uid}_0_{i}": {"global_steps": step} for i in range(rows if status == "finished" else 0)})

    def kv_list(self):
        return {name: {key: dict(tag) for key, tag in items.items()} for name, items in self.partitions.items()}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.partitions[partition_id].pop(key, None)


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(verl_buffer, "tq", made)
    return made


@pytest.fixture
def buffer(queue):
    def make(threshold=2, strategy="wait", refill=None, look=lambda: None):
        sampler = {"max_off_policy_threshold": threshold, "max_off_policy_strategy": strategy}
        v1 = OmegaConf.create({"sampler": {**sampler, "sampler_kwargs": {"poll_interval": 0}}, "colocate_async": {}})
        return TeamBuffer("colocate_async", v1, batch_size=2, refill=refill or pytest.fail, look=look)

    return make


def sampled(buffer, step, tasks=2, partition="train"):
    rows, _ = buffer.sample(global_steps=step, partition_id=partition, batch_size=tasks)
    return sorted(rows.keys)


def test_the_oldest_tasks_come_first_and_those_of_a_step_by_their_numbers(queue, buffer):
    for uid, step in (("1-0", 1), ("0-10", 0), ("0-2", -1), ("0-9", 0), ("0-11", 0)):
        queue.task(uid, step)
    made = buffer(threshold=8)
    assert sampled(made, 2) == ["0-2_0_0", "0-9_0_0"]
    assert sampled(made, 2) == ["0-10_0_0", "0-11_0_0"]
    assert sampled(made, 2, tasks=1) == ["1-0_0_0"]
    assert not queue.partitions["train"].keys() & {"0-2", "1-0"}, "a task that was sampled is no task any more"


def test_a_task_at_the_threshold_is_waited_for_although_younger_ones_have_ended(queue, buffer, monkeypatch):
    queue.task("1-0", 1, "running")
    for uid in ("1-1", "2-0", "2-1"):
        queue.task(uid, int(uid[0]))
    polls = []

    def ends(seconds):
        polls.append(seconds)
        if len(polls) == 3:
            queue.task("1-0", 1)

    monkeypatch.setattr(verl_buffer.time, "sleep", ends)
    assert sampled(buffer(threshold=2), 2) == ["1-0_0_0", "1-1_0_0"] and len(polls) == 3


def test_a_lost_engine_ends_the_wait(queue, buffer, monkeypatch):
    def lost():
        raise EngineLost("engine 0 of policy main is gone")

    queue.task("1-0", 1, "running")
    made = buffer(look=lost)
    monkeypatch.setattr(asynchronous, "SECONDS_BETWEEN_LOOKS", 0)
    with pytest.raises(EngineLost):
        sampled(made, 1)


def test_tasks_without_rows_are_replaced_until_batches_of_them_have_none(queue, buffer):
    refilled = []

    def refill(count):
        refilled.append(count)
        for number in range(count):
            queue.task(f"1-{sum(refilled) + number}", 1, "failure")

    queue.task("1-0", 1, "failure")
    with pytest.raises(SessionsFailed, match=f"{2 * FAILED_BATCHES} tasks have ended without rows while step 1"):
        sampled(buffer(refill=refill), 1)
    assert sum(refilled) == 2 * FAILED_BATCHES - 1


def test_failures_are_counted_anew_for_every_batch(queue, buffer):
    made = buffer(refill=lambda count: [queue.task(f"1-{9 - i}", 1) for i in range(count)])
    for step in range(1, 3 * FAILED_BATCHES):
        queue.task(f"{step}-0", step, "failure")
        queue.task(f"{step}-1", step)
        assert len(sampled(made, step)) == 2


def test_validation_is_sampled_whole_while_tasks_of_the_training_are_out(queue, buffer):
    queue.task("3-0", 3, "running")
    for uid, status in (("val3-0-0", "finished"), ("val3-0-1", "failure")):
        queue.task(uid, 3, status, partition="val")
    assert sampled(buffer(threshold=2), 3, partition="val") == ["val3-0-0_0_0"]
    assert "3-0" in queue.partitions["train"]
