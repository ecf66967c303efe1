"""Every shipped team: no reply breaks it, and each of its arguments is checked."""

import json
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("math_verify")
pytest.importorskip("tantivy")
pytest.importorskip("pyspiel")

from in_process_programs import NAME
from scripted_sessions import APPROVE, box, python

from verl_mas.config.schema import AgentSpec, FaultSpec, WorkflowSpec
from verl_mas.environment.execution.problem import Problem, Stdio
from verl_mas.errors import SessionFault
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Task
from verl_mas.workflow.base import WORKFLOWS, find, resolve
from verl_mas.workflow.run import run

BOX, CODE, TEST = box(0.5), python("print(0.5)"), "<input>1</input><output>0.5</output>"
SEARCH = "<search>founder of Brel\nAiko born</search>"
ANSWER = "<answer>Tazor</answer>"
DELEGATE = ["<subtask>Half of 1?</subtask><subtask>Half of 2?</subtask>", BOX]
FOLDS = calls(("return", {"message": "0.5"}), text="It is 0.5.")
RUNS = {"execution": {"executor": NAME}}
SEARCHES = {"retriever": "index"}
PROBLEM = Problem([Stdio("1", "0.5"), Stdio("2", "1")], examples=[Stdio("1", "0.5")], golden="print(int(input()) / 2)")
# (team, its arguments, the replies of its agents)
TEAMS = [
    ("single", {}, BOX),
    ("solver_verifier", {"score": "math"}, {"solver": BOX, "verifier": APPROVE}),
    ("rated", {"settings": {"score": "math"}}, {"solver": BOX, "verifier": APPROVE, "rater": '{"1": 1, "2": 0.5}'}),
    ("cory", {}, BOX),
    ("debate", {}, BOX),
    ("debate", {"judge": True, "answer_reward": 0.5}, BOX),
    ("peers", {"peers": 3, "answers": 2, "teacher": "majority"}, BOX),
    ("peers", {"teacher": "review"}, [BOX, APPROVE]),
    ("generate_verify_refine", {}, {"generator": BOX, "verifier": APPROVE, "refiner": BOX}),
    ("leader_workers", {"score": "em"}, {"leader": DELEGATE, "worker": "2"}),
    ("recursive", {"score": "em"}, {"solver_0": DELEGATE, "solver_1": BOX}),
    ("ensemble", RUNS, {"reasoner": box(1), "judge": BOX}),
    ("ensemble", {"score": "math", **RUNS}, {"reasoner": box(1), "judge": BOX}),
    ("ensemble", {"score": "math", "tool_users": 1, **RUNS}, {"reasoner": BOX, "tool_user": CODE, "judge": BOX}),
    ("reasoner_tool_user", RUNS, {"reasoner": BOX, "tool_user": CODE}),
    ("single_tool_user", RUNS, CODE),
    ("single_coder", RUNS, [python("print(1)"), CODE]),
    ("coder_tester", RUNS, {"coder": CODE, "tester": TEST}),
    ("coder_tester", {"tester_reward": "cure", **RUNS}, {"coder": CODE, "tester": TEST}),
    ("search_team", SEARCHES, {"verifier": ["<verify>no</verify>", "<verify>yes</verify>"],
                               "searcher": SEARCH, "answerer": ANSWER}),
    ("search_chain", {"fork": "round_robin", **SEARCHES},
     {"rewriter": SEARCH, "reranker": "<keep>1</keep>", "answerer": ANSWER}),
    ("folded", {"judged": True}, {"solver": [calls(("branch", {"prompt": "?"})), FOLDS, BOX],
                                  "judge": "<scope>inside</scope>"}),
    ("world", {"world": "open_spiel/kuhn_poker"}, "<action>Pass</action>"),
    ("world", {"world": "open_spiel/kuhn_poker", "continuations": 1}, "<action>Bet</action>"),
    ("world", {"world": "open_spiel/matrix_rps", "memory": "conversation"}, "<action>Rock</action>"),
    ("world_exploitability", {"asked": 1}, "<action>Pass</action>"),
]  # fmt: skip
TRUTHS = {
    "single_coder": PROBLEM.text(),
    "coder_tester": PROBLEM.text(),
    "search_team": ["Tazor"],
    "search_chain": ["Tazor"],
}
FOLDERS = ("verl_mas.workflows.", "verl_mas.config.hydra.recipe.")
# Their rows name boards and tables of their own: tests/recipes/test_every_team.py.
WITH_OWN_TASKS = {"guide_driver", "secret_words", "sharded_lookup", "single_reader", "split_clues", "tool_user_planner"}
SHIPPED = {name for name in WORKFLOWS if find(name).__module__.startswith(FOLDERS)} - WITH_OWN_TASKS


def test_every_team_is_here():
    # Programs are tested in tests/gateway, and environments of verifiers in tests/environment/worlds/hubs.
    assert {name for name, *_ in TEAMS} == SHIPPED - {"program", "verifiers"}


@pytest.mark.parametrize(("name", "arguments", "replies"), TEAMS)
def test_no_reply_breaks_it(index, name, arguments, replies):
    arguments = arguments | ({"retriever": index} if "retriever" in arguments else {})
    task = Task([{"role": "user", "content": "What is a half?"}], ground_truth=TRUTHS.get(name, "0.5"))
    agents = {"worker": AgentSpec(format_penalty=0.1)} if name == "leader_workers" else None
    report = check_workflow(partial(resolve, WorkflowSpec(name, args=arguments)), replies, task, agents)
    assert report.ok, str(report)
    assert json.dumps(report.cases[0].info)


# A world needs no ground truth for its rewards.
WITHOUT = ("single", "folded", "world", "world_exploitability")
GRADED = [team[:2] for team in TEAMS if team[0] not in WITHOUT and team[:2] != ("ensemble", RUNS)]


@pytest.mark.parametrize(("name", "arguments"), GRADED)
def test_without_a_ground_truth_no_agent_acts(index, name, arguments):
    arguments = arguments | ({"retriever": index} if "retriever" in arguments else {})
    llm = ScriptedLLM("no reply")
    # Peers need a ground truth only in validation.
    task = replace(Task.of("What is a half?"), validate=name == "peers")
    with pytest.raises(SessionFault, match=r"ground truth|accepted answer|code task"):
        run(resolve(WorkflowSpec(name, args=arguments)), task, llm, faults=FaultSpec(retries=0))
    assert not llm.requests
