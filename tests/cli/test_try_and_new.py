"""`verl-mas new` writes a team that `verl-mas try`, its own test and `verl-mas check` accept, and that trains."""

from __future__ import annotations

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

import verl_mas
from verl_mas import cli
from verl_mas.cli.new import FRAMEWORKS
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.workflows.program import ReferredProgram

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
    assert "add --force" in output_of(capsys, "new", "adders", "--out", team, code=1)
    assert "README.md exists" in output_of(capsys, "new", "other", "--out", team, code=1)
    assert (team / "adders.py").read_text() == "mine"
    output_of(capsys, "new", "adders", "--out", team, "--force")
    assert "class Adders" in (team / "adders.py").read_text()


# Stands in for the client of OpenAI: what the team asks of it, over HTTP.
CLIENT = """
import asyncio, json
from types import SimpleNamespace
from urllib.request import Request, urlopen


class AsyncOpenAI:
    def __init__(self, base_url, api_key):
        self.chat = self.completions = self
        self._address, self._headers = f"{base_url}/chat/completions", {"Authorization": f"Bearer {api_key}"}

    async def create(self, **body):
        request = Request(self._address, json.dumps(body).encode(), self._headers)
        reply = await asyncio.to_thread(lambda: json.load(urlopen(request)))
        return json.loads(json.dumps(reply), object_hook=lambda given: SimpleNamespace(**given))
"""


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
    args = yaml.safe_load((folder / "mas/adders.yaml").read_text())["mas"]["workflow"]["args"]
    assert args["python"] == f".venv-{framework}/bin/python"


def test_a_team_of_the_client_of_openai_plays_at_the_gateway(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    output_of(capsys, "new", "adders", "--framework", "openai")
    (tmp_path / "adders/openai.py").write_text(CLIENT)
    program = ReferredProgram(agents=("writer", "checker"), function=f"{tmp_path}/adders/adders.py:team")
    task = verl_mas.Task([{"role": "user", "content": "2 + 3 = ?"}], ground_truth="5")
    session = verl_mas.run(program, task, verl_mas.ScriptedLLM({"writer": "4", "checker": "5"}))
    assert session.team_reward == 1.0 and [reply.agent for reply in session.replies] == ["writer", "checker"]


def test_a_program_may_be_tried_with_calls_and_an_empty_answer_is_a_note(tmp_path, capsys):
    file = tmp_path / "silent.py"
    file.write_text(f"import sys\nsys.path.append({SUPPORT!r})\nfrom urllib_team import ask\n{SILENT}")
    args = ["--args", f"function={file}:team", "--args", "models={*:solver}"]
    reply = '<tool_call>{"name": "final_answer", "arguments": {"answer": "5"}}</tool_call>'
    assert "the last reply is a call of final_answer" in output_of(capsys, "try", "program", *args, "--reply", reply)


def test_the_prompts_of_a_new_program_fit_its_tiny_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    output_of(capsys, "new", "adders", "--framework", "openai")
    data = yaml.safe_load((tmp_path / "adders/mas/adders.yaml").read_text())["data"]
    assert data["max_prompt_length"] + data["max_response_length"] <= byte_tokenizer().model_max_length


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
    ("arguments", "says"),
    [
        ("solver_verifer", "did you mean 'solver_verifier'"),
        ("adders.py:Adders --endpoint http://localhost:8000/v1", "--model is missing"),
        ("adders.py:Adders --model m", "--endpoint is missing"),
        ("adders.py:Adders --endpoint http://127.0.0.1:9/v1 --model m", "the session at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_tried_is_refused(team, capsys, arguments, says):
    assert says in output_of(capsys, "try", *arguments.split(), code=1)


@pytest.mark.parametrize("arguments", ["--api-key-env PATH", "--truth 5"])
def test_an_option_that_nothing_would_read_is_refused(team, capsys, arguments):
    assert arguments.split()[0] in output_of(capsys, "try", "adders.py:Adders", *arguments.split(), code=2)


def test_its_own_test_passes(team):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(team)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(team)])}
    done = subprocess.run(command, cwd=team, env=environment, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.nightly  # the tutorial has the same steps
def test_the_new_team_is_checked_and_trains(team, capsys):
    """By the commands of its README."""
    output_of(capsys, "new", "adders", "--out", team, "--force", "--tiny-model")
    for split in ("train", "test"):
        output_of(capsys, "data", "rows", f"{split}.jsonl", "--out", f"{split}.parquet", "--source", "adders")
    run = ["--config-dir", ".", "+mas=adders", "+platform=cpu"]
    assert output_of(capsys, "check", *run).rstrip().splitlines()[-1].startswith("accepted")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *run, "trainer.total_training_steps=2"]
    short = ["trainer.test_freq=2", "trainer.save_freq=-1", "trainer.val_before_train=false"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, *short], cwd=team, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    steps = [json.loads(line) for line in (team / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 2 and steps[-1]["metrics"]["session/dropped"] == 0


@pytest.mark.parametrize(("source", "says"), [("openai/gsm8k", ": 1\n"), ("sums", "NotImplementedError")])
def test_a_row_is_scored_by_verls_own_function(source, says, tmp_path, capsys):
    row = {"data_source": source, "prompt": [{"role": "user", "content": "2 + 3?"}]}
    row["reward_model"] = {"style": "rule", "ground_truth": "5"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    shown = output_of(capsys, "try", "single", "--row", tmp_path / "rows.jsonl", "--reply", "#### 5")
    [scored] = [line for line in shown.splitlines(keepends=True) if "scores the answer:" in line]
    assert says in scored
