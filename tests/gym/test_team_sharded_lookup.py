from __future__ import annotations

from dataclasses import replace

import pytest

from verl_mas.errors import DataError, SessionFault
from verl_mas.gym.lookup import CUT, SHARDS, LookupMoves, ShardedLookup, SingleReader, Symbols
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Malformed, Task
from verl_mas.workflow.run import run
from verl_mas.workflows.leader_workers import Answer, Delegation

# b -> c -> a, in the first shard and then in the second.
TASK = Task([{"role": "user", "content": "b"}], ground_truth="a", extra_info={SHARDS: CUT.join(["1 d c", "2 a b"])})


def prompts(llm) -> list[str]:
    return [request.messages[-1]["content"] for request in llm.requests]


def test_every_symbol_is_looked_up_by_a_worker_per_shard():
    llm = ScriptedLLM({"leader": [" b", " c", " = a"], "worker": [" c", " -", " -", " a"]})
    session = run(ShardedLookup(), TASK, llm)
    assert prompts(llm) == [" $ b", " 1 d c ! b", " 2 a b ! b", " c -", " 1 d c ! c", " 2 a b ! c", " - a"]
    assert session.team_reward == 1.0 and session.answer == "a"
    assert session.info == {"acc": 1.0, "rounds": 2, "workers": 4, "critical_path": 5}


def test_the_leader_may_look_up_several_symbols_at_once():
    llm = ScriptedLLM({"leader": [" b d", " = a"], "worker": " -"})
    assert run(ShardedLookup(max_workers=4), TASK, llm).info["workers"] == 4
    assert run(ShardedLookup(max_workers=2), TASK, ScriptedLLM({"leader": " b d", "worker": " -"})).info["workers"] == 0


def test_a_report_that_cannot_be_read_is_not_read_as_nothing_found():
    llm = ScriptedLLM({"leader": [" b", " = c"], "worker": [" c c", " -"]})
    session = run(ShardedLookup(), TASK, llm)
    assert prompts(llm)[-1] == " # -" and session.replies[1].malformed and session.team_reward == 0.0


def test_an_answer_differs_from_one_in_another_case():
    llm = ScriptedLLM({"leader": [" b", " = A"], "worker": " -"})
    assert run(ShardedLookup(), TASK, llm).team_reward == 0.0


def test_fewer_workers_than_shards_are_refused():
    with pytest.raises(SessionFault, match=r"max_workers=2 or more"):
        run(ShardedLookup(max_workers=1), TASK, ScriptedLLM(" b"))


def test_rows_without_shards_are_refused():
    with pytest.raises(SessionFault, match="verl-mas data lookup"):
        run(ShardedLookup(), replace(TASK, extra_info={}), ScriptedLLM(" b"))


def test_a_single_reader_of_shards_reads_on_with_what_it_found():
    llm = ScriptedLLM([" c", " a"])
    session = run(SingleReader(), TASK, llm)
    assert prompts(llm) == [" 1 d c ? b", " 2 a b ? b c"]
    assert session.team_reward == 1.0 and session.info == {"acc": 1.0, "critical_path": 2}


def test_a_single_reader_ends_after_two_passes():
    session = run(SingleReader(), TASK, ScriptedLLM([" -", " -", " c", " -"]))
    assert session.info == {"acc": 0.0, "critical_path": 4} and session.answer == ""


def test_a_single_reader_of_the_whole_table_writes_both_steps_at_once():
    llm = ScriptedLLM(" c a")
    session = run(SingleReader(window="all"), TASK, llm)
    assert prompts(llm) == [" 1 d c 2 a b ? b"] and session.team_reward == 1.0


def test_one_step_is_no_answer():
    assert run(SingleReader(window="all"), TASK, ScriptedLLM(" a")).team_reward == 0.0


@pytest.mark.parametrize("move", [Delegation(("a",)), Delegation(("a", "b")), Answer("z")])
def test_a_move_round_trips(move):
    assert LookupMoves(2).parse(LookupMoves(2).render(move)) == move


@pytest.mark.parametrize("text", ["", "-", "ab", "a b c", "= ", "= a b", "a = b", "= -", "1"])
def test_what_is_neither_symbols_nor_an_answer_is_malformed(text):
    assert isinstance(LookupMoves(2).parse(text), Malformed)


@pytest.mark.parametrize("found", [[], ["a"], ["a", "b"]])
def test_symbols_round_trip(found):
    assert Symbols(2).parse(Symbols(2).render(found)) == found
    with pytest.raises(DataError):
        Symbols(1).render(["a", "b"])


@pytest.mark.parametrize("workflow", [ShardedLookup, SingleReader])
def test_the_workflow_passes_its_own_check(workflow):
    replies = {"leader": [" b", " c", " = a"], "worker": " c", "reader": " c a"}
    report = check_workflow(workflow, replies, TASK)
    assert report.ok, report
