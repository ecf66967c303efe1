"""`verl-mas new` writes a team that `verl-mas try`, its own test and `verl-mas check` accept, and that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_mas import cli
from verl_mas.cli import try_
from verl_mas.errors import ConfigError

ROOT = Path(__file__).parents[2]
TASK = ["--task", "2 + 3 = ?", "--truth", "5"]


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
    assert cli.main(["new", "adders", "--out", str(team)]) == 1
    assert "add --force" in capsys.readouterr().err and (team / "adders.py").read_text() == "mine"
    assert cli.main(["new", "adders", "--out", str(team), "--force"]) == 0
    assert "class Adders" in (team / "adders.py").read_text()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("MyTeam", "use my_team"),
        ("my-team", "use my_team"),
        ("class", "use my_team"),
        ("1st", "use my_team"),
        ("json", "use my_json"),
        ("debate", "use my_debate"),
        ("torch", "use my_torch"),
    ],
)
def test_a_name_that_cannot_be_a_module_is_refused(tmp_path, monkeypatch, capsys, name, fix):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", name]) == 1
    assert fix in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_new_team_is_accepted_and_its_rewards_are_printed(team, capsys):
    assert cli.main(["try", "adders.py:Adders", *TASK, "--reply", "<answer>5</answer>"]) == 0
    shown = capsys.readouterr().out
    assert "rewards: writer 1, checker 1" in shown and shown.rstrip().endswith("accepted")


def test_replies_are_by_agent_on_request(team, capsys):
    replies = ["--reply", "writer: <answer>5</answer>", "--reply", "checker: <answer>6</answer>"]
    assert cli.main(["try", "adders.py:Adders", *TASK, *replies, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accepted"] and found["cases"][0]["rewards"] == {"writer": [0.0], "checker": [0.0]}


def test_a_broken_workflow_is_refused_with_its_problem_and_the_exit_code(tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text(
        "from verl_mas import Outcome, Workflow\n"
        "class Broken(Workflow):\n"
        "    agents = ('a',)\n"
        "    async def run(self, task, team):\n"
        "        return Outcome(answer=team.a.act('x'))\n"
    )
    assert cli.main(["try", f"{file}:Broken", "--endpoint", "http://localhost:1/v1", "--model", "m"]) == 1
    shown = capsys.readouterr().out
    assert "`await` is missing" in shown and "so no session was run" in shown


def test_a_session_of_an_endpoint_is_printed(team, serve, capsys):
    endpoint = serve(lambda body: "<answer>5</answer>")
    options = [*TASK, "--reply", "<answer>5</answer>", "--endpoint", endpoint.url, "--model", "m"]
    assert cli.main(["try", "adders.py:Adders", *options]) == 0
    shown = capsys.readouterr().out
    assert "Correct it if it is wrong" in shown and "writer" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["adders.py:Nope"], "classes of that file: Adders"),
        (["solver_verifer"], "did you mean 'solver_verifier'"),
        (["adders.py:Adders", "--args", "rounds=3"], "--args.rounds"),
        (["adders.py:Adders", "--endpoint", "http://localhost:8000/v1"], "--model is missing"),
        (["adders.py:Adders", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m"], "the session at http://127.0.0.1:9"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_refused(team, capsys, arguments, says):
    assert cli.main(["try", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_its_own_test_passes(team):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(team)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(team)])}
    done = subprocess.run(command, cwd=team, env=environment, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_a_session_needs_an_endpoint_and_a_model(team):
    with pytest.raises(ConfigError, match="--endpoint is missing"):
        try_.main(["adders.py:Adders", "--model", "m"])


@pytest.mark.e2e
@pytest.mark.nightly  # the tutorial has the same steps
def test_the_new_team_is_checked_and_trains(team, capsys):
    """By the commands of its README."""
    assert cli.main(["new", "adders", "--out", str(team), "--force", "--tiny-model"]) == 0
    for split in ("train", "test"):
        assert cli.main(["data", "rows", f"{split}.jsonl", "--out", f"{split}.parquet", "--source", "adders"]) == 0
    run = ["--config-dir", ".", "+mas=adders", "+platform=cpu"]
    assert cli.main(["check", *run]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("accepted")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *run, "trainer.total_training_steps=2"]
    short = ["trainer.test_freq=2", "trainer.save_freq=-1", "trainer.val_before_train=false"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, *short], cwd=team, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    steps = [json.loads(line) for line in (team / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 2 and steps[-1]["metrics"]["session/dropped"] == 0
