"""Coding harnesses from npm as agents, with the commands of the page. Needs `make frameworks`."""

import json
import os
import sys

import pytest
from framework_programs import HERE, ROOT, node

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.session import Session
from verl_mas.workflow.task import Task
from verl_mas.workflows.program import ReferredProgram

BINARIES = ROOT / "versions" / "harnesses" / "node_modules" / ".bin"
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not BINARIES.is_dir(), reason="harnesses missing: make frameworks")]
TASK = Task([{"role": "user", "content": "What is 2 + 3?"}], ground_truth="5")
# The tool that runs a command in the shell, and its argument.
SHELLS = {"opencode": ("bash", "command"), "codex": ("exec_command", "cmd"), "claude": ("Bash", "command")}
AGENTS = ("planner", "programmer")
each_harness = pytest.mark.parametrize("name", SHELLS)


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(BINARIES), os.path.dirname(node()), os.environ["PATH"]]))


def command(name: str) -> list[str]:
    return [sys.executable, f"{HERE.parents[1]}/recipes/programs/harness_team.py", name]


def shell(name: str, text: str):
    tool, argument = SHELLS[name]
    return calls((tool, {argument: text, "description": "answer"}), text="I compute.")


def played(name: str, *replies: object, max_acts: int = 64) -> Session:
    team = ReferredProgram(agents=AGENTS, command=command(name), tolerate=["limit"])
    llm = ScriptedLLM({"planner": "Add them.", "programmer": list(replies)})
    return verl_mas.run(team, TASK, llm, faults=FaultSpec(retries=0, max_acts=max_acts))


def check_rows(session: Session, acts: list[int]) -> None:
    """Check the number of acts of each row, and that each sampled token is trained once. A token is a byte."""
    rows = session.rows()
    assert [len(row.replies) for row in rows] == acts, [reply.origin for reply in session.replies]
    for row in rows:
        sampled = [(reply.text, *((call.name, call.arguments) for call in reply.tool_calls)) for reply in row.replies]
        text = "".join(text + "".join(f"<{name}>{given}" for name, given in called) for text, *called in sampled)
        ids, mask = row.generation.response_ids, row.generation.response_mask
        assert bytes(token for token, trained in zip(ids, mask, strict=True) if trained) == text.encode()


@each_harness
def test_a_harness_runs_its_tools_in_the_folder_of_the_session_and_stays_in_one_row(name):
    hidden = "! grep -aqs ground_truth /proc/[0-9]*/environ"
    text = f"grep -q 2 question.txt && {hidden} && echo 5 > answer.txt"
    session = played(name, shell(name, text), shell(name, "ls"), "It is 5.")
    assert session.team_reward == 1.0
    check_rows(session, [1, 3])


@each_harness
def test_a_harness_that_never_ends_ends_at_the_limit_of_acts(name):
    session = played(name, shell(name, "echo 5 > answer.txt"), max_acts=4)
    assert session.team_reward == 1.0
    check_rows(session, [1, 3])


@each_harness
def test_calls_that_no_tool_can_run_go_back_to_the_model_and_stay_in_one_row(name):
    tool, _ = SHELLS[name]
    session = played(name, calls((tool, {"wrong": 1})), "I stop here.")
    assert session.team_reward == 0.0
    check_rows(session, [1, 2])


@each_harness
def test_a_harness_trains(trained, name):
    """Train a harness. The tiny model writes noise, which calls no tool and is cut."""
    arguments = f"command:{json.dumps(command(name))},agents:[planner,programmer],tolerate:[limit]"
    assert all(metrics["session/acts/mean"] >= 2 for metrics in trained(arguments.replace(" ", "")))
