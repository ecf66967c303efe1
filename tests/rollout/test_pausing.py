"""Workers and their manager while engines change weights, and at the end of a run."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import ray
from resuming import client_of
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from verl_mas.config.schema import FaultSpec, MasConfig, PolicySpec
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.manager import MasAgentLoopManager
from verl_mas.rollout.team_client import TeamClient
from verl_mas.rollout.verl_client import VerlPolicy
from verl_mas.rollout.worker import MasAgentLoopWorker, gates_of
from verl_mas.verl_ import data_plane
from verl_mas.workflow import Outcome


@pytest.fixture
def worker():
    """A worker with a base, two adapters of this base, and another policy."""
    made = object.__new__(MasAgentLoopWorker)
    adapters = {name: PolicySpec(adapter_of="base") for name in ("solver", "verifier")}
    made.mas = MasConfig(policies={"base": PolicySpec(), **adapters, "judge": PolicySpec()})
    made.gates = gates_of(made.mas, made.mas.policies)
    return made


async def test_a_worker_pauses_some_policies_or_all(worker):
    seen = []
    for pause, policies in ((True, ["judge"]), (True, None), (False, ["solver"]), (False, None)):
        await (worker.pause(policies) if pause else worker.resume(policies))
        seen.append([name for name, gate in worker.gates.items() if gate.is_open])
    # Adapters of one base have its engines.
    served = ["base", "solver", "verifier"]
    assert seen == [served, [], served, [*served, "judge"]]


async def acts(task, team):
    return Outcome(answer=await team.a.act(task.messages), reward=1.0)


def policy_of(policy, generate):
    """Return a policy with resumed replies, whose engine is `generate`, and its gate."""
    made, _ = policy(lambda prompt, number: "x")
    rollout = made.config.actor_rollout_ref.rollout
    client = client_of(generate, **rollout)
    return VerlPolicy(made.config, client, made.model, RLHFDataset), client.gate


def test_the_limits_of_acts_and_sessions_leave_out_the_time_at_a_closed_gate(policy, play, loop, tokenizer):
    texts = ["a rep", "ly"]

    async def generate(**request):
        ids = tokenizer.encode(texts[len(sent)])
        sent.append(request)
        if len(sent) == 1:
            gate.close()
            loop.call_later(1.5, gate.open)
        reason = "aborted" if len(sent) == 1 else "completed"
        fields = {"global_steps": len(sent)}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason=reason, extra_fields=fields)

    sent = []
    client, gate = policy_of(policy, generate)
    faults = FaultSpec(act_timeout_s=1, session_timeout_s=1, retries=0)
    result = play(acts, client, faults=faults)
    assert not result.failed and result.session.answer == "a reply"
    [reply] = result.session.replies
    fields = reply.generation.output.extra_fields
    assert (fields["versions"], fields["aborts"]) == ([[5, 1], [2, 2]], 1)
    assert isinstance(client.client, TeamClient) and reply.seconds > 1.4


async def test_cancelled_tasks_end_without_rows_and_without_a_status(worker, monkeypatch):
    statuses = []

    async def status(key, partition_id, tag):
        statuses.append(tag["status"])

    monkeypatch.setattr(data_plane, "tq", SimpleNamespace(async_kv_put=status))
    worker.counts = {False: SessionCounts(), True: SessionCounts()}
    worker.background_tasks, ended = set(), []

    async def group(prompt, validate):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(prompt["uid"])

    worker._run_group = group  # noqa: SLF001
    for uid in ("a", "b"):
        run = worker._run_prompt({"agent_name": "mas", "uid": uid}, {}, {"validate": False})  # noqa: SLF001
        worker.background_tasks.add(asyncio.ensure_future(run))
    await asyncio.sleep(0.01)
    await worker.cancel_all()
    assert sorted(ended) == ["a", "b"] and statuses == ["running", "running"]


class Batch(list):
    def chunk(self, parts):
        size = -(-len(self) // parts)
        return [Batch(self[start : start + size]) for start in range(0, len(self), size)]


def test_tasks_that_come_one_by_one_go_to_all_workers_in_turn(monkeypatch):
    received = {name: [] for name in "abc"}

    def remote(name):
        return SimpleNamespace(generate_sequences=SimpleNamespace(remote=received[name].extend))

    monkeypatch.setattr(ray, "get", lambda references: references)
    manager = object.__new__(MasAgentLoopManager)
    manager.agent_loop_workers = [remote(name) for name in received]
    for batch in ([0], [1, 2], [3], [4, 5, 6], [7]):
        manager.generate_sequences(Batch(batch))
    # Three tasks for three workers: the order stays.
    assert sorted(len(tasks) for tasks in received.values()) == [2, 3, 3]
    assert received == {"a": [0, 3, 6], "b": [1, 4, 7], "c": [2, 5]}


def test_a_run_ends_although_a_session_does_not_end_with_its_cancellation(monkeypatch, caplog):
    manager = object.__new__(MasAgentLoopManager)
    cancels = [SimpleNamespace(remote=lambda name=name: name) for name in ("ends", "goes on")]
    manager.agent_loop_workers = [SimpleNamespace(cancel_all=cancel) for cancel in cancels]
    monkeypatch.setattr(ray, "wait", lambda calls, num_returns, timeout: (calls[:1], calls[1:]))
    monkeypatch.setattr(ray, "get", lambda done: done == ["ends"] or pytest.fail("it waits for the other"))
    with caplog.at_level(logging.WARNING, logger="verl"):
        manager.cancel_all()
    assert "sessions of 1 agent-loop workers have not ended 30 s after" in caplog.text
