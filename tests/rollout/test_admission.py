"""The number of concurrent sessions is limited. Sessions start in order, and their clocks start with them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.config.schema import FaultSpec, MasConfig
from verl_mas.rollout import worker as module
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.worker import GroupFailed, MasAgentLoopWorker
from verl_mas.verl_.row import SESSION_ID

TRAJECTORY = {"validate": False, "step": 1, "sample_index": 0, "rollout_n": 0}


class Running:
    """A worker that records its sessions. A session takes `ticks`, and fails if `fails` returns True."""

    def __init__(self, patch, at_once, ticks=lambda task, session: 1, fails=lambda task, session: False):
        self.now, self.most, self.ran = 0, 0, []
        self.ticks, self.fails = ticks, fails
        worker = self.worker = object.__new__(MasAgentLoopWorker)
        worker.mas = MasConfig(faults=FaultSpec(then="fail_group", retries=0))
        rollout = SimpleNamespace(n=1, val_kwargs=SimpleNamespace(n=1))
        worker.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        worker.models, worker.session_config, worker.logged, worker.trajectories = {}, None, set(), None
        worker.counts = {False: SessionCounts(), True: SessionCounts()}
        worker.slots, worker.distillation_enabled = asyncio.Semaphore(at_once), False
        patch.setattr(module, "run_session", self.session)
        patch.setattr(module.Task, "of_row", staticmethod(lambda dataset, **kind: SimpleNamespace(**dataset, **kind)))
        patch.setattr(module, "stored_rows", lambda session, models, dataset: [(dataset["uid"], dataset[SESSION_ID])])

    async def session(self, workflow, task, config, score):
        uid, number = task.uid, getattr(task, SESSION_ID)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.ticks(uid, number)):
                await asyncio.sleep(0)
        finally:
            self.now -= 1
        self.ran.append((uid, number))
        session = SimpleNamespace(task=SimpleNamespace(session=number, validate=False, key=uid), replies=[])
        session.info, session.seconds = {}, 0.0
        failed = self.fails(uid, number)
        faults = [SimpleNamespace(kind=module.FaultKind.REFUSED, line="", traceback="")] if failed else []
        return SimpleNamespace(session=session, failed=failed, faults=faults)

    def group(self, uid, sessions):
        prompt = {"uid": uid, "agent_name": "mas", "__rollout_n__": sessions}
        return self.worker._run_group(prompt, TRAJECTORY, trace=False)  # noqa: SLF001

    def all(self, sizes):
        async def main():
            groups = [self.group(uid, size) for uid, size in enumerate(sizes)]
            return await asyncio.wait_for(asyncio.gather(*groups, return_exceptions=True), timeout=20)

        return asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_never_more_than_the_limit_run_and_every_session_runs_once(at_once, sizes, chance):
    with pytest.MonkeyPatch.context() as patch:
        it = Running(patch, at_once, ticks=lambda task, session: chance.randint(0, 4))
        rows = it.all(sizes)
    assert it.most <= at_once
    assert [sorted(group) for group in rows] == [[(uid, n) for n in range(size)] for uid, size in enumerate(sizes)]
    assert sorted(it.ran) == [(uid, n) for uid, size in enumerate(sizes) for n in range(size)]


def test_as_many_run_as_may_however_large_their_group_is(monkeypatch):
    it = Running(monkeypatch, at_once=4, ticks=lambda task, session: 5)
    it.all([9, 1])
    assert it.most == 4 and len(it.ran) == 10


def test_the_sessions_of_the_first_tasks_run_first(monkeypatch):
    it = Running(monkeypatch, at_once=2)
    it.all([3, 3, 3])
    assert it.ran == sorted(it.ran)


def test_a_group_that_is_dropped_leaves_its_places_in_the_queue_to_the_others(monkeypatch):
    it = Running(monkeypatch, at_once=2, ticks=lambda task, session: 3, fails=lambda task, session: task == 0)
    failed, whole = it.all([50, 4])
    assert isinstance(failed, GroupFailed) and len(whole) == 4
    assert len([uid for uid, _ in it.ran if uid == 0]) <= 2, "the others of the group were still waiting"
    assert not it.worker.slots.locked()


async def test_a_run_that_ends_takes_along_what_runs_and_what_waits(monkeypatch):
    it = Running(monkeypatch, at_once=2, ticks=lambda task, session: 10**9)
    group = asyncio.ensure_future(it.group(0, 9))
    await asyncio.sleep(0.001)
    assert it.now == 2
    group.cancel()
    await asyncio.wait({group})
    assert (it.now, it.worker.slots.locked(), len(asyncio.all_tasks())) == (0, False, 1)
