from __future__ import annotations

import pytest

from verl_mas.config.schema import BranchSpec
from verl_mas.errors import SessionFault
from verl_mas.gym.split_clues import SplitClues, items
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run


def task(parts: int = 2, **more) -> Task:
    [item] = items(1, parts=parts, **more)
    row = item.row(0, "train")
    return Task(row["prompt"], ground_truth=item.truth, extra_info=row["extra_info"])


def told(request):
    """Own letters, or the letter that is left by its own and all that it read; nothing readable if none is."""
    own, *messages = request.messages[-1]["content"][:-1].split("|")
    if not request.messages[-1]["content"].endswith("?"):
        return own
    return "".join(set(own).intersection(*messages)) or "none"


@pytest.mark.parametrize("arguments", [{}, {"rounds": 2}, {"parts": 3}, {"parts": 4, "rounds": 2}, {"control": "all"}])
def test_a_team_that_passes_on_its_clues_is_right(arguments):
    workflow = SplitClues(text="compact", **arguments)
    session = run(workflow, task(arguments.get("parts", 2)), ScriptedLLM(lambda request, branch: told(request)))
    assert session.team_reward == 1.0 and session.info["acc"] == 1.0
    acts = [reply.agent for reply in session.replies]
    team = ["receiver"] if "control" in arguments else list(workflow.agents)
    assert acts == team * arguments.get("rounds", 1)
    assert session.info["named"] == (0.0 if "control" in arguments else 1.0)


def test_names_and_roles_of_larger_teams():
    assert SplitClues().agents == ("sender", "receiver")
    assert SplitClues(parts=4).agents == ("sender_0", "sender_1", "sender_2", "receiver")


def test_prompts_show_own_clues_and_messages_alone():
    llm = ScriptedLLM({"sender": "a b c", "receiver": "a"})
    given = task(decoys=1.0)
    run(SplitClues(text="compact", rounds=2), given, llm)
    first, second, third, last = [request.messages[-1]["content"] for request in llm.requests]
    sender, receiver = given.extra_info["parts"]
    hint = "+" + given.extra_info["hint"]
    assert sorted(first[:3]) == sorted(sender) and first[3:] == f"{hint}A"
    assert sorted(second[:3]) == sorted(receiver) and second[3:] == f"{hint}|abcB"
    assert third[3:] == f"{hint}|abc|aA" and last[3:] == f"{hint}|abc|a|abc?"


def test_words_ask_for_tags_and_say_what_could_not_be_read():
    llm = ScriptedLLM({"sender": "no tag", "receiver": "<answer>a</answer>"})
    session = run(SplitClues(), task(decoys=1.0), llm)
    assert session.replies[0].malformed and session.answer == "a"
    sender, receiver = [request.messages[-1]["content"] for request in llm.requests]
    assert "<message>" in sender and "Messages of the team" not in sender and "may be wrong" in sender
    assert "<answer>" in receiver and "nothing that can be read" in receiver


def test_the_order_of_the_clues_differs_between_sessions():
    given = task()
    prompts = set()
    for session in range(20):
        llm = ScriptedLLM("abc")
        again = Task(given.messages, ground_truth=given.ground_truth, extra_info=given.extra_info, session=session)
        run(SplitClues(text="compact"), again, llm)
        prompts.add(llm.requests[0].messages[-1]["content"])
    assert len(prompts) == 6


def test_of_several_candidates_only_answers_are_scored():
    right = task().ground_truth
    wrong = next(letter for letter in "abcdefgh" if letter != right)
    llm = ScriptedLLM({"sender": "abc", "receiver": lambda request, branch: [wrong, right][branch]})
    session = run(SplitClues(text="compact"), task(), llm, branch=BranchSpec(k=2))
    assert [reply.team_reward for reply in session.replies] == [0.0, 0.0, 0.0, 1.0]
    assert session.answer == right and session.team_reward == 1.0


def test_rows_of_another_number_of_parts_fail_with_the_command():
    with pytest.raises(SessionFault, match="--parts 3"):
        run(SplitClues(parts=3), task(), ScriptedLLM("a"))


@pytest.mark.parametrize("arguments", [{}, {"text": "compact", "rounds": 2}, {"control": "part"}])
def test_it_passes_check_workflow(arguments):
    report = check_workflow(lambda: SplitClues(**arguments), "<answer>a</answer>", task())
    assert report.ok, str(report)


def test_a_message_that_is_played_on_is_worth_what_the_receiver_makes_of_it():
    given = task()
    own, other = given.extra_info["parts"]
    useless = "".join(sorted(set("abcdefgh") - set(own) - set(other))[:3])

    def say(request, branch):
        return [own, useless][branch] if request.agent == "sender" else told(request)

    workflow = SplitClues(text="compact", continuations=2)
    assert workflow.probes and not workflow.sparse
    session = run(workflow, given, ScriptedLLM(say), branch=BranchSpec(k=2))
    sent = [reply for reply in session.replies if reply.agent == "sender"]
    assert [reply.team_reward for reply in sent] == [1.0, 0.0]
    assert sum(reply.probe for reply in session.replies) == 4
    assert all(reply.team_reward in (0.0, 1.0) for reply in session.replies if not reply.probe)
