"""`verl-mas new` writes a team that `verl-mas try`, its own test and `verl-mas check` accept, and that trains."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import output_of

from verl_mas import cli
from verl_mas.cli.new import FRAMEWORKS
from verl_mas.testing.tiny_model import byte_tokenizer

ROOT = Path(__file__).parents[2]
TRY = ["try", "adders.py:Adders", "--task", "2 + 3 = ?", "--truth", "5"]


@pytest.fixture
def team(tmp_path, monkeypatch) -> Path:
    """The folder of a new team, which is the current folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "adders"]) == 0
    monkeypatch.chdir(tmp_path / "adders")
    return tmp_path / "adders"


def test_the_folder_has_the_teams_name_everywhere(team):
    files = sorted(str(file.relative_to(team)) for file in team.glob("**/*") if file.is_file())
    assert files == [*("README.md", "adders.py", "mas/adders.yaml", "test.jsonl", "test_adders.py", "train.jsonl")]
    texts = "".join((team / file).read_text() for file in files)
    assert "my_team" not in texts and "MyTeam" not in texts and "class Adders(Workflow)" in texts


def test_nothing_is_replaced_unasked(team, capsys):
    (team / "adders.py").write_text("mine")
    assert "README.md exists" in output_of(capsys, "new", "other", "--out", team, code=1)
    assert (team / "adders.py").read_text() == "mine"
    output_of(capsys, "new", "adders", "--out", team, "--force")
    assert "class Adders" in (team / "adders.py").read_text()


SUPPORT = str(Path(__file__).parents[1] / "support")
SILENT = """
def team(task, gateway):
    ask(gateway, "gpt-4o", task.messages)
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_team_of_another_framework_is_that_of_an_endpoint_of_the_run(tmp_path, monkeypatch, capsys, framework):
    monkeypatch.chdir(tmp_path)
    assert "adders.py" in output_of(capsys, "new", "adders", "--framework", framework)
    folder = tmp_path / "adders"
    texts = [file.read_text() for file in folder.glob("**/*") if file.is_file()]
    assert len(texts) == 6 and not {"my_team", "FRAMEWORK", "PACKAGES"} & set(re.findall(r"\w+", "".join(texts)))
    names = {node.name for node in ast.parse((folder / "adders.py").read_text()).body if hasattr(node, "name")}
    assert "team" in names
    written = yaml.safe_load((folder / "mas/adders.yaml").read_text())
    assert written["mas"]["workflow"]["args"]["python"] == f".venv-{framework}/bin/python"
    lengths = written["data"]["max_prompt_length"] + written["data"]["max_response_length"]
    assert lengths <= byte_tokenizer().model_max_length, "the prompts fit the tiny model"


def test_a_program_may_be_tried_with_calls_and_an_empty_answer_is_a_note(tmp_path, capsys):
    file = tmp_path / "silent.py"
    file.write_text(f"import sys\nsys.path.append({SUPPORT!r})\nfrom urllib_team import ask\n{SILENT}")
    args = ["--args", f"function={file}:team", "--args", "models={*:solver}"]
    reply = '<tool_call>{"name": "final_answer", "arguments": {"answer": "5"}}</tool_call>'
    assert "the last reply is a call of final_answer" in output_of(capsys, "try", "program", *args, "--reply", reply)


@pytest.mark.parametrize("name", ["MyTeam", "my-team", "class", "1st", "json", "debate", "torch", "task"])
def test_a_name_that_cannot_be_a_module_is_refused(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    fix = f"use my_{name}" if name in ("json", "debate", "torch", "task") else "use my_team"
    assert fix in output_of(capsys, "new", name, code=1) and not list(tmp_path.iterdir())


def test_the_new_team_is_accepted_and_its_rewards_are_printed_with_replies_by_agent_on_request(team, capsys):
    shown = output_of(capsys, *TRY, "--reply", "<answer>5</answer>")
    assert "rewards: writer 1, checker 1" in shown and shown.rstrip().endswith("accepted")
    replies = ["--reply", "writer: <answer>5</answer>", "--reply", "checker: <answer>6</answer>"]
    found = json.loads(output_of(capsys, *TRY, *replies, "--json"))
    assert found["accepted"] and found["cases"][0]["rewards"] == {"writer": [0.0], "checker": [0.0]}


def test_a_broken_workflow_is_refused_with_its_problem_and_the_exit_code(tmp_path, capsys):
    file = tmp_path / "broken.py"
    run = "    async def run(self, task, team):\n        return Outcome(answer=team.a.act('x'))\n"
    file.write_text(f"from verl_mas import Outcome, Workflow\nclass Broken(Workflow):\n    agents = ('a',)\n{run}")
    endpoint = ["--endpoint", "http://localhost:1/v1", "--model", "m"]
    shown = output_of(capsys, "try", f"{file}:Broken", *endpoint, code=1)
    assert "`await` is missing" in shown and "so no session was run" in shown


def test_a_session_of_an_endpoint_is_printed(team, serve, capsys):
    endpoint = serve(lambda body: "<answer>5</answer>")
    shown = output_of(capsys, *TRY, "--reply", "<answer>5</answer>", "--endpoint", endpoint.url, "--model", "m")
    assert "Correct it if it is wrong" in shown and "writer" in shown


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        ("solver_verifer", "did you mean 'solver_verifier'", 1),
        ("adders.py:Adders --endpoint http://localhost:8000/v1", "--model is missing", 1),
        ("adders.py:Adders --endpoint http://127.0.0.1:9/v1 --model m", "the session at http://127.0.0.1:9", 1),
        ("adders.py:Adders --api-key-env PATH", "--api-key-env", 2),
        ("adders.py:Adders --truth 5", "--truth", 2),
    ],
)
def test_arguments_that_cannot_be_tried_are_refused(team, capsys, arguments, says, code):
    assert says in output_of(capsys, "try", *arguments.split(), code=code)


def test_its_own_test_passes(team):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(team)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(team)])}
    done = subprocess.run(command, cwd=team, env=environment, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("source", "says"), [("openai/gsm8k", ": 1\n"), ("sums", "NotImplementedError")])
def test_a_row_is_scored_by_verls_own_function(source, says, tmp_path, capsys):
    row = {"data_source": source, "prompt": [{"role": "user", "content": "2 + 3?"}]}
    row["reward_model"] = {"style": "rule", "ground_truth": "5"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    shown = output_of(capsys, "try", "single", "--row", tmp_path / "rows.jsonl", "--reply", "#### 5")
    [scored] = [line for line in shown.splitlines(keepends=True) if "scores the answer:" in line]
    assert says in scored
