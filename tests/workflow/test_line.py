import asyncio

import pytest

from verl_mas import Outcome, Task, Workflow, run
from verl_mas.config.schema import FaultSpec
from verl_mas.errors import SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.line import Line


class Crew(Workflow):
    agents = ("leader", "worker")
    workers: int = 3

    async def run(self, task, team):
        async def work(number):
            worker = team.spawn("worker")
            await asyncio.sleep((self.workers - number) / 100)
            return [await worker.act(f"{number}, part {part}") for part in range(2)]

        await asyncio.gather(*[work(number) for number in range(self.workers)])
        await team.worker.act("by itself")
        return Outcome(answer=await team.leader.act("sum up"), reward=1.0)


def test_turns_of_spawned_agents_do_not_depend_on_who_answers_first():
    replies = run(Crew(workers=3), "t", ScriptedLLM("x")).replies
    assert {(reply.agent, reply.instance, reply.turn, reply.messages[-1]["content"]) for reply in replies} == {
        *(("worker", number + 1, part, f"{number}, part {part}") for number in range(3) for part in range(2)),
        ("worker", 0, 0, "by itself"),
        ("leader", 0, 0, "sum up"),
    }


def test_more_instances_than_acts_and_agents_that_the_team_does_not_have_are_refused():
    with pytest.raises(SessionFault, match=r"3 instances in a session; rule: .* mas.faults.max_acts=2 acts; fix: "):
        run(Crew(workers=3), "t", ScriptedLLM("x"), faults=FaultSpec(max_acts=2, retries=0))

    class Wrong(Crew):
        async def run(self, task, team):
            team.spawn("wroker")

    with pytest.raises(SessionFault, match=r"team has no agent 'wroker'(.|\n)*worker"):
        run(Wrong(), Task.of("t"), ScriptedLLM("x"))


def test_lines_in_parallel_count_by_themselves():
    line = Line()
    assert [line.next_turn("a", 0), line.next_turn("a", 0), line.next_turn("a", 1)] == [0, 1, 0]
    probe, fork = line.probing(), line.forked(3)
    assert (probe.next_turn("a", 0), fork.next_turn("a", 0), line.next_turn("a", 0)) == (2, 2, 2)
    assert (fork.new_instance("a"), fork.new_instance("a"), line.new_instance("a")) == (1, 2, 1)
    assert (fork.fork, fork.probing().fork, probe.probe, fork.probe) == (3, 3, True, False)
    assert (line.alone, fork.alone, probe.alone) == (False, True, True)
