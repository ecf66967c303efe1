"""Asynchronous modes: dispatch of tasks, the replay buffer, and the order of engines and gates in a step."""

import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import verl.trainer.ppo.v1.replay_buffer as verl_buffer
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.config.run import load
from verl_mas.config.schema import FaultSpec, MasConfig
from verl_mas.errors import EngineLost, SessionsFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.trainer.metrics import TokenCount
from verl_mas.trainer.modes import asynchronous
from verl_mas.trainer.modes.asynchronous import FAILED_BATCHES, ColocatedAsyncTrainer, SeparateAsyncTrainer, TeamBuffer
from verl_mas.trainer.policies.separate import SeparatePolicy
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.pools.pools import Pools
from verl_mas.verl_ import data_plane

BATCH = 4


def task(step, status="finished"):
    return {"is_prompt": True, "status": status, "global_steps": step}


@pytest.fixture
def trainer(monkeypatch):
    """A trainer of five steps over a queue in memory; `made.queue` has (uid, step) of the tasks."""

    def make(warm_up=1.0, step=1, restored=()):
        made = object.__new__(ColocatedAsyncTrainer)
        v1 = {"colocate_async": {"num_warmup_batches": warm_up}}
        made.config = OmegaConf.create({"data": {"train_batch_size": BATCH}, "trainer": {"v1": v1}})
        made.global_steps, made.total_training_steps = step, 5
        made.queue, made.named = {uid: task(at) for uid, at in restored}, Counter()
        made.token_count = TokenCount()
        monkeypatch.setattr(data_plane, "listed", lambda partition: made.queue)
        monkeypatch.setattr(PPOTrainer, "_next_train_batch", lambda self, tasks: tasks)

        def submit(self, tasks):
            name = max(self.global_steps, 0)
            for _ in range(tasks):
                made.queue[f"{name}-{made.named[name]}"] = task(self.global_steps, "pending")
                made.named[name] += 1

        monkeypatch.setattr(PPOTrainer, "_submit_batch_to_rollout", submit)
        return made

    return make


def dispatched(trainer):
    return Counter(tag["global_steps"] for tag in trainer.queue.values())


@pytest.mark.parametrize(
    ("batches", "steps"), [(0, {}), (1, {0: 4}), (3, {-2: 4, -1: 4, 0: 4}), (1.5, {-1: 2, 0: 4}), (9, None)]
)
def test_a_warm_up_has_the_steps_before_the_first(trainer, batches, steps):
    made = trainer(batches)
    made.on_train_begin()
    expected = {step: BATCH for step in range(-4, 1)} if steps is None else steps
    assert dispatched(made) == expected, "no more than five steps can train on"
    assert made.global_steps == 1


def test_no_more_tasks_are_dispatched_than_the_steps_that_remain_can_train_on(trainer):
    made, trained = trainer(2), []
    made.on_train_begin()
    while made.global_steps <= 5:
        made.prepare_step()
        oldest = sorted(made.queue, key=lambda uid: made.queue[uid]["global_steps"])[:BATCH]
        trained.append({made.queue.pop(uid)["global_steps"] for uid in oldest})
        made.global_steps += 1
    assert trained == [{-1}, {0}, {1}, {2}, {3}] and not made.queue


@pytest.mark.parametrize(
    ("restored", "added"), [(0, {4: 8}), (6, {4: 2}), (8, {}), (20, {})], ids=["none", "some", "all", "more"]
)
def test_a_run_that_resumes_dispatches_what_its_checkpoint_lacks(trainer, restored, added):
    """Warm-up tasks of earlier steps could get the names of restored tasks."""
    made = trainer(2, step=4, restored=[(f"3-{i}", 3) for i in range(restored)])
    made.on_train_begin()
    assert {step: count for step, count in dispatched(made).items() if step != 3} == added


def test_tasks_without_rows_start_again_with_the_steps_that_they_have(trainer, monkeypatch):
    made, sent, announced = trainer(step=6), [], []
    statuses = {"4-10": "running", "4-9": "pending", "4-11": "failure", "5-1": "running", "5-0": "finished"}
    made.queue = {uid: task(int(uid[0]), status) for uid, status in statuses.items()}
    monkeypatch.setattr(data_plane, "prompts", lambda uids, step: (list(uids), step))
    monkeypatch.setattr(data_plane, "announce", lambda uids, partition, step: announced.append((list(uids), step)))
    made.agent_loop_manager = SimpleNamespace(generate_sequences=sent.append)
    assert made._reissue_inflight_prompts() == 4  # noqa: SLF001
    assert sent == announced == [(["4-9", "4-10", "4-11"], 4), (["5-1"], 5)]


def test_failures_are_judged_by_batches_of_tasks_and_not_by_the_few_that_end_in_a_step(trainer):
    failed = SessionCounts(sessions=2, tasks=2, failed={"refused": 2}, first_faults={"refused": "no such setting"})
    fine = SessionCounts(sessions=2, tasks=2)
    made = trainer()
    made.mas = MasConfig(faults=FaultSpec(max_dropped_share=0.5))
    made._sessions = made._unjudged = SessionCounts()  # noqa: SLF001
    made.agent_loop_manager = Mock(**{"pop_counts.side_effect": [failed, fine, failed, failed]})
    for _ in range(3):
        made._count_sessions()  # noqa: SLF001
    with pytest.raises(SessionsFailed, match="all 4 sessions of the tasks that ended until step 1 failed"):
        made._count_sessions()  # noqa: SLF001
    assert made._sessions.sessions == 8  # noqa: SLF001


@pytest.mark.parametrize("fails", [False, True])
def test_sessions_that_still_run_are_ended_however_the_run_ends(trainer, monkeypatch, fails):
    monkeypatch.setattr(PPOTrainer, "fit", Mock(side_effect=EngineLost("gone") if fails else None))
    manager = Mock(**{"cancel_all.side_effect": RayActorError if fails else None})
    with pytest.raises(EngineLost) if fails else nullcontext():
        trainer().fit(manager)
    manager.cancel_all.assert_called_once_with()


class Queue:
    """A fake of TransferQueue that has only tags."""

    def __init__(self):
        self.partitions = {"train": {}, "val": {}}

    def task(self, uid, step, status="finished", partition="train"):
        items = self.partitions[partition]
        items[uid] = task(step, status)
        if status == "finished":
            items[f"{uid}_0_0"] = {"global_steps": step}

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
    def make(threshold=2, refill=None, look=lambda: None):
        sampler = {"max_off_policy_threshold": threshold, "max_off_policy_strategy": "wait"}
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
    queue.task("1-0", 1, "running")
    made = buffer(look=Mock(side_effect=EngineLost("engine 0 of policy main is gone")))
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


def test_failures_are_counted_from_zero_for_every_batch(queue, buffer):
    made = buffer(refill=lambda count: [queue.task(f"1-{9 - i}", 1) for i in range(count)])
    for step in range(1, 3 * FAILED_BATCHES):
        queue.task(f"{step}-0", step, "failure")
        queue.task(f"{step}-1", step)
        assert len(sampled(made, step)) == 2


def test_validation_is_sampled_whole_while_tasks_of_the_training_are_out(queue, buffer):
    queue.task("3-0", 3, "running")
    queue.task("val3-0-0", 3, partition="val")
    queue.task("val3-0-1", 3, "failure", partition="val")
    assert sampled(buffer(threshold=2), 3, partition="val") == ["val3-0-0_0_0"]
    assert "3-0" in queue.partitions["train"]


APART = {
    "policies": {"a": {"engines": "serve"}, "guide": {"trainable": False}, "b": {"engines": "serve"}},
    "pools": {name: {} for name in ("a", "b", "serve", "guides")},
}
KINDS = {"a": SeparatePolicy, "guide": FrozenPolicy, "b": SeparatePolicy}


def policy(name, log, together):
    """Make a policy without processes that logs its calls."""

    def abort():
        # The barrier opens only if all engines are aborted at the same time.
        together.wait(timeout=5)
        log.append("abort")

    policy = object.__new__(KINDS[name])
    policy.abort, policy.wake = abort, lambda step: log.append(f"wake {name} {step}")
    policy.sleep, policy.resume = (partial(log.append, f"{moment} {name}") for moment in ("sleep", "resume"))
    return policy


AWAKE = ["wake a 3", "wake guide 3", "wake b 3"]
ASLEEP = ["sleep a", "sleep guide", "sleep b"]
RESUMED = ["resume a", "resume guide", "resume b"]
# Only the gate of a policy is closed while it gets weights. A frozen policy keeps serving.
BEHIND_ITS_GATE = ["close ['a']", "wake a 3", "open ['a']", "close ['b']", "wake b 3", "open ['b']"]


@pytest.mark.parametrize(
    ("kind", "moment", "expected"),
    [
        (ColocatedAsyncTrainer, "on_init_end", AWAKE),
        (ColocatedAsyncTrainer, "on_sample_end", ["close all", "abort", "abort", "abort", *ASLEEP]),
        (ColocatedAsyncTrainer, "on_step_end", [*AWAKE, *RESUMED, "open all"]),
        (SeparateAsyncTrainer, "on_init_end", AWAKE),
        (SeparateAsyncTrainer, "on_sample_end", []),
        (SeparateAsyncTrainer, "on_step_end", BEHIND_ITS_GATE),
    ],
)
def test_engines_are_aborted_at_once_behind_closed_gates_and_requests_come_last(monkeypatch, kind, moment, expected):
    made, log, together = object.__new__(kind), [], Barrier(len(KINDS))
    made.policies = {name: policy(name, log, together) for name in KINDS}
    made.pools = SimpleNamespace(each=lambda names, work: [work(name) for name in names])
    made.agent_loop_manager = SimpleNamespace(
        pause=lambda names="all": log.append(f"close {names}"), resume=lambda names="all": log.append(f"open {names}")
    )
    made.global_steps, made.curr_step_profile, made.timing_raw = 3, False, {}
    made.mas = load(APART)
    monkeypatch.setattr("verl_mas.trainer.trainer.refresh", lambda policies, step: None)
    made.on_init_end()
    if moment != "on_init_end":
        log.clear()
        getattr(made, moment)()
    assert log == expected


@pytest.mark.parametrize(("serving", "together"), [(("serve", "serve"), 1), (("serve", "guides"), 2)])
def test_policies_of_two_pools_are_sent_to_one_serving_pool_in_turn(serving, together):
    made, sending, most = object.__new__(SeparateAsyncTrainer), [], []

    def send(step):
        sending.append(step)
        time.sleep(0.05)
        most.append(len(sending))
        sending.pop()

    policies = {name: {"pool": name, "engines": to} for name, to in zip("ab", serving, strict=True)}
    made.mas, made.pools = load({**APART, "policies": policies}), object.__new__(Pools)
    made.pools.mas, made.policies = made.mas, {name: object.__new__(SeparatePolicy) for name in "ab"}
    for policy in made.policies.values():
        policy.wake = send
    made.agent_loop_manager, made.global_steps, made.timing_raw = Mock(), 3, {}
    made.on_init_end()
    made.on_step_end()
    assert max(most) == together
