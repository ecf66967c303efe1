"""`verl-mas adopt` makes a team of a program: it plays the program, and learns its agents from its requests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import output_of

from verl_mas.testing.explorer import Explorer
from verl_mas.workflow import Task
from verl_mas.workflow.client import Request

ASK = """
import json, os, sys
from urllib.request import Request, urlopen

def ask(model, text, tools=(), address=os.environ["OPENAI_BASE_URL"]):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "tools": [*tools]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urlopen(Request(address + "/chat/completions", json.dumps(body).encode(), headers)) as reply:
        return json.load(reply)["choices"][0]["message"]
"""
# The program asks the second agent if the first agent calls a tool, and names the third agent in the address.
TEAM = """
who = {"type": "object", "properties": {"who": {"enum": ["math", "gpt-4"]}}}
tools = [{"type": "function", "function": {"name": "ask_expert", "parameters": who}}]
question = json.load(sys.stdin)["question"]
for call in ask("gpt-4.1", question, tools).get("tool_calls", ()):
    ask(json.loads(call["function"]["arguments"])["who"], question)
ask("any", question, address=os.environ["OPENAI_BASE_URL"].replace("/v1", "/agents/judge/v1"))
"""


@pytest.fixture
def adopt(tmp_path, monkeypatch, capsys):
    """Adopts a program with this source."""
    monkeypatch.chdir(tmp_path)

    def adopted(source: str, *words: str, code: int = 0) -> str:
        Path("graph.py").write_text(source)
        return output_of(capsys, "adopt", "graph.py", *words, code=code)

    return adopted


def test_a_program_becomes_a_team_of_all_that_it_asks(adopt):
    printed = adopt(ASK + TEAM, "--task", "2 + 3 = ?", "--truth", "5", "--args", "agents=[clerk]")
    assert "\ngpt-4.1: agent gpt_41, 1 requests" in "\n" + printed and "\naccepted with 6 notes\n" in printed
    assert "calls with wrong arguments: workflow:" in printed and "in training such a session is dropped" in printed
    args = yaml.safe_load(Path("adopted_graph/mas/adopted_graph.yaml").read_text())["mas"]["workflow"]["args"]
    assert {*args["agents"]} == {"clerk", "gpt_41", "math", "gpt4", "judge"}
    assert args["models"] == {"gpt-4.1": "gpt_41", "gpt-4": "gpt4"}
    assert json.loads(Path("adopted_graph/tasks.jsonl").read_text())["reward_model"]["ground_truth"] == "5"
    assert "adopted_graph.yaml exists" in adopt(ASK + TEAM, code=1)


REWARDED = (
    'ask("m", json.load(sys.stdin)["question"])\nos.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), b\'{"reward": 1}\')'
)


@pytest.mark.parametrize(
    ("source", "notes"),
    [
        ('ask("m", "hello")\nask("m", "hello")', ["all requests have one name", "no prompt has the task"]),
        ('ask("m", input())', ["a prompt has the ground truth"]),
        (REWARDED, []),
    ],
)
def test_notes_name_problems_that_training_would_have(adopt, source, notes):
    found = json.loads(adopt(ASK + source, "--json", "--task", "2 + 3 = ?", "--truth", "5"))
    assert [note[: len(start)] for note, start in zip(found["notes"], notes, strict=True)] == notes
    assert Path("adopted_graph/reward.py").exists() == (source != REWARDED)


ELSEWHERE = 'from urllib.request import urlopen\nurlopen("https://models.invalid/v1/chat/completions", b"{}")'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (ELSEWHERE, ["models.invalid", "asks its models at $OPENAI_BASE_URL"]),
        ("import time; time.sleep(60)", ["no request in 1 s", "asks its models at $OPENAI_BASE_URL"]),
        ("print(1)", ["it ended well", "asks its models at $OPENAI_BASE_URL"]),
        ("import nosuchmodule", ["graph.py", "No module named 'nosuchmodule'", "give --python"]),
        (
            ASK + 'ask("m", "q")["content"].index("5")',
            ["after 1 requests, to m", "substring not found", "give --reply"],
        ),
    ],
)
def test_a_program_that_cannot_be_adopted_is_refused_with_the_cause(adopt, source, says):
    printed = adopt(source, "--seconds", "1" if "sleep" in source else "60", code=1)
    assert [each for each in says if each not in printed] == [] and not Path("adopted_graph").exists()


@pytest.mark.parametrize("words", [["--python", "nopython", "graph.py"], ["nofile.py"], ["nocommand"]])
def test_a_command_that_is_not_there_is_refused(capsys, words):
    assert words[-1 if len(words) == 1 else 1] in output_of(capsys, "adopt", *words, code=1)


def test_a_tool_is_called_with_arguments_of_its_schema_and_a_text_that_is_not_accepted_is_a_call_too():
    item = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}, "next": {"$ref": "#/$defs/Item"}}}
    properties = {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}, "to": {"anyOf": [{"const": "a"}]}}
    schema = {"type": "object", "properties": properties, "$defs": {"Item": item}}
    tools = [{"type": "function", "function": {"name": "final", "parameters": schema}}]
    explorer, refused = Explorer({}, Task([]), "fine", 1), {"role": "assistant", "content": "fine"}
    first, second, third = (
        explorer.reply(Request("m", "s", 0, [{"role": "user", "content": "q"}, *more], tools=tools), "q")
        for more in ([], [], [refused])
    )
    [call] = first.tool_calls
    assert call.parameters["to"] == "a" and call.parameters["items"][0]["n"] == 3
    assert second == "fine" and third == first


@pytest.mark.e2e
@pytest.mark.nightly
def test_an_adopted_team_trains_by_the_commands_that_are_printed(adopt, capsys):
    check, command = (line.split() for line in adopt(ASK + TEAM).rstrip().splitlines()[-2:])
    # The tiny model's chat template has no tools.
    assert output_of(capsys, *check[1:]).rstrip().endswith("accepted with 1 warning")
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    steps = [json.loads(line) for line in Path("adopted_graph/runs/first/metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 2 and steps[-1]["metrics"]["session/dropped"] == 0
