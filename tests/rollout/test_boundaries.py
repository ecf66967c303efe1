"""Any exception of foreign code ends its session or becomes the result of its tool. The worker keeps running."""

import asyncio
from threading import Thread

import pytest
from escapes import ESCAPES, panic, raises
from omegaconf import OmegaConf

from verl_mas.rollout import worker as module
from verl_mas.workflow import Outcome


class Boundary:
    """A workflow, a tool, an engine and a reward function. The one named by `place` raises."""

    def __init__(self, place, escape):
        self.place, self.escape = place, escape

    def at(self, place):
        if place == self.place:
            self.escape()

    async def acts(self, task, team):
        self.at("workflow")
        await asyncio.gather(self.task(), asyncio.sleep(0))
        reply = await team.solver.act(task.messages, tools=[self.tool, self.async_tool])
        return Outcome(answer=reply)

    async def task(self):
        self.at("task")

    def tool(self) -> str:
        """Called once."""
        self.at("tool")
        return "done"

    async def async_tool(self) -> str:
        """Called once."""
        self.at("async tool")
        return "done"

    def answer(self, prompt, number):
        self.at("engine")
        calls = (f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("tool", "async_tool"))
        return "x" if number else "".join(calls)

    async def score(self, outputs, kwargs):
        self.at("reward")
        outputs[-1].reward_score = 1.0
        outputs[-1].extra_fields["reward_extra_info"] = {}


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.__name__)
@pytest.mark.parametrize("place", ["workflow", "task", "tool", "async tool", "engine", "reward"])
def test_whatever_code_of_others_raises_ends_its_session_or_is_the_result_of_its_tool(make, monkeypatch, place, escape):
    case = Boundary(place, escape)
    it = make(case.acts, n=1, answer=case.answer)
    OmegaConf.update(it.worker.config, "actor_rollout_ref.rollout.response_length", 512)
    OmegaConf.update(it.worker.config, "actor_rollout_ref.rollout.multi_turn.max_parallel_calls", 2)
    monkeypatch.setattr(it.worker, "_compute_score", case.score)
    monkeypatch.setattr(module.os, "_exit", raises(AssertionError))
    # Use another thread, because a KeyboardInterrupt in the main thread is the user's.
    run = Thread(target=it.run, daemon=True)
    run.start()
    run.join(30)
    assert not run.is_alive() and it.worker.broken is None
    counts = it.counts()
    if "tool" in place:
        assert counts.faults or counts.metrics()["agent/solver/tool_errors"] > 0
    else:
        assert sum(counts.faults.values()) == 1


def test_a_task_whose_status_cannot_be_set_ends_its_worker_as_the_trainer_would_wait_for_it(make, monkeypatch):
    it, ended = make(Boundary("", panic).acts), []
    monkeypatch.setattr(it.queue, "async_kv_put", raises(ConnectionError("gone")))
    monkeypatch.setattr(module.os, "_exit", ended.append)
    it.run()
    assert ended == [1] and isinstance(it.worker.broken, ConnectionError)
