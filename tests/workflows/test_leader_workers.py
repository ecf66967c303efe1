import asyncio

import pytest

from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import build
from verl_mas.errors import ConfigError, DataError
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Generation, Malformed, Task
from verl_mas.workflow.run import run
from verl_mas.workflows.leader_workers import Delegation, FinalAnswer, LeaderWorkers, Moves

TASK = Task([{"role": "user", "content": "How many moons have Mars and Earth?"}], ground_truth="3")
TWO = "<subtask>Moons of Mars?</subtask><subtask>Moons of Earth?</subtask>"
BOX = r"\boxed{3}"


def play(leader, worker="2", **args):
    llm = ScriptedLLM({"leader": leader, "worker": worker})
    return run(LeaderWorkers(**args), TASK, llm), llm


def acts(session) -> list[tuple[str, int, int]]:
    return [(reply.agent, reply.instance, reply.turn) for reply in session.replies]


def test_each_subtask_goes_to_a_worker_of_its_own_that_reads_nothing_else():
    session, llm = play([TWO, BOX], score="em")
    assert acts(session) == [("leader", 1, 0), ("worker", 1, 0), ("worker", 2, 0), ("leader", 1, 1)]
    mars, earth = ("".join(message["content"] for message in request.messages) for request in llm.requests[1:3])
    assert "Moons of Mars?" in mars and "Earth" not in mars
    assert "Moons of Earth?" in earth and "Mars" not in earth
    assert session.team_reward == 1.0 and session.answer == "3"
    assert session.info == {"acc": 1.0, "rounds": 1, "workers": 2, "critical_path": 3}


def test_the_leader_reads_every_report_beside_its_subtask_in_one_conversation():
    session, llm = play([TWO, BOX], ["two", "<think>one?</think>one"])
    *_, before, last = llm.requests[-1].messages
    assert before == {"role": "assistant", "content": TWO}
    assert "Subtask: Moons of Mars?\nReport: two" in last["content"]
    assert "Subtask: Moons of Earth?\nReport: one" in last["content"] and "think" not in last["content"]
    assert len({reply.row for reply in session.replies if reply.agent == "leader"}) == 1
    assert len({reply.row for reply in session.replies if reply.agent == "worker"}) == 2


def test_workers_of_a_round_act_at_the_same_time():
    running, most = 0, 0

    class Slow:
        async def generate(self, request, n=1):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return [Generation(BOX if request.agent == "leader" and request.turn else TWO)]

    run(LeaderWorkers(), TASK, Slow())
    assert most == 2


def test_the_leader_may_delegate_again_until_it_has_no_round_left():
    session, llm = play([TWO, "<subtask>Sure?</subtask>", TWO], max_rounds=2)
    assert [agent for agent, *_ in acts(session)] == ["leader", "worker", "worker", "leader", "worker", "leader"]
    assert "No further subtask" in llm.requests[-1].messages[-1]["content"]
    assert session.replies[-1].malformed and session.info["workers"] == 3 and session.info["critical_path"] == 5


def test_without_a_need_for_help_the_leader_answers_at_once():
    session, _ = play(BOX)
    assert session.info == {"rounds": 0, "workers": 0, "critical_path": 1} and session.answer == BOX
    # A last reply without an answer is not graded.
    assert play("I do not know", max_rounds=1, score="em")[0].team_reward == 0.0


def test_a_delegation_that_cannot_be_read_reaches_no_worker_and_uses_up_a_round():
    session, llm = play([TWO + BOX, BOX], max_rounds=1, score="em")
    assert [agent for agent, *_ in acts(session)] == ["leader", "leader"] and session.replies[0].malformed
    assert "could not be read: subtasks and an answer" in llm.requests[-1].messages[-1]["content"]
    assert session.team_reward == 1.0 and session.info["critical_path"] == 2


def test_an_empty_report_is_malformed():
    session, llm = play([TWO, BOX], ["<think>never ends", "one"])
    assert [reply.malformed for reply in session.replies] == [None, "an empty report", None, None]
    assert "Report: none" in llm.requests[-1].messages[-1]["content"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no box"),
        (TWO + BOX, "subtasks and an answer"),
        ("<subtask> </subtask>", "an empty subtask"),
        ("<subtask>a", "do not pair up"),
        (TWO + "<subtask>Moons of Venus?</subtask>", "3 subtasks, not 1 to 2"),
        (r"\boxed{1} \boxed{2}", "more than one box"),
        ("<think>" + TWO, "no box"),
    ],
)
def test_what_is_neither_a_delegation_nor_an_answer_is_malformed(text, reason):
    move = Moves(2).parse(text)
    assert isinstance(move, Malformed) and reason in move.reason


def test_a_move_round_trips_and_one_that_would_be_read_as_another_is_not_rendered():
    for move in (Delegation(("Moons of Mars?",)), Delegation(("a", "a")), FinalAnswer("3")):
        assert Moves(2).parse(Moves(2).render(move)) == move
    for at_most, move in ((2, Delegation(("a</subtask><subtask>b",))), (0, Delegation(("a",)))):
        with pytest.raises(DataError):
            Moves(at_most).render(move)


def test_the_longest_session_has_the_acts_that_are_announced():
    session, _ = play(TWO, max_rounds=2, max_workers=2)
    assert len(session.replies) == LeaderWorkers(max_rounds=2, max_workers=2).most_acts(k=1)


def test_an_unknown_grader_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'em'"):
        LeaderWorkers(score="emm")


def test_workers_search_with_a_tool_of_their_own_and_the_leader_has_none(tmp_path):
    pytest.importorskip("tantivy")
    build([Passage("mars", "Mars has two moons.", "Mars")], tmp_path / "index")
    worker = [calls(("search", {"query": "moons of Mars"})), "two"]
    llm = ScriptedLLM({"leader": ["<subtask>Moons of Mars?</subtask>", BOX], "worker": worker})
    session = run(LeaderWorkers(retriever=str(tmp_path / "index")), TASK, llm)
    (call,) = session.replies[1].tool_calls
    assert call.result == "(1) Mars: Mars has two moons." and "Report: two" in str(llm.requests[-1].messages)
    assert [bool(request.tools) for request in llm.requests] == [False, True, True, False]
