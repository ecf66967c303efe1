"""Natural mistakes in a team's code and in arguments of `verl-mas try`: each mistake gets one message, and no mistake
is accepted silently. `tests/checks` tests wrong settings of commands."""

import json
from pathlib import Path
from textwrap import indent

import pytest
import yaml
from commands import output_of

from verl_mas.testing.check_workflow import check_workflow

GOOD = '\\boxed{4} <v>yes</v>\n```json\n{"p": 60}\n```'
HEAD = """import asyncio, json, sys
from verl_mas import *
class Verdict(Choice, tag="v"):
    YES, NO = "yes", "no"
class Mine(Workflow):
    agents = ("a", "b")
    async def helper(self, team):
        return 1
    async def run(self, task, team):
        if not task.question:
            return Outcome(reward=0.0)
        r, b = await team.a.act(task.question), await team.b.act("x")
"""
RUN = "async def run(self, task, team):\n        return Outcome(answer=await team.a.act('q'), reward=1.0)\n"
TABLE = yaml.safe_load((Path(__file__).parent / "natural_mistakes.yaml").read_text())
MISTAKES = [pair for entry in TABLE["lines"] for pair in entry.items()]


def tried(code: str):
    names: dict = {}
    last = "return Outcome(answer=b, reward=None if r.reward is not None else 1.0)\n"
    exec(compile(HEAD + indent(f"{code}\n{last}", " " * 8), "team.py", "exec"), names)
    return check_workflow(names["Mine"], GOOD)


@pytest.mark.parametrize(("code", "says"), MISTAKES, ids=[code for code, _ in MISTAKES])
def test_a_mistake_in_a_team_is_answered_with_one_message(code, says):
    report = tried(code)
    found = report.notes if report.ok else list(report.causes)
    assert len(found) == 1 and says in found[0], str(report)
    assert str(report).count(found[0].splitlines()[0]) == 1 and len(str(report)) < 5000
    assert report.verdict == ("accepted with 1 note" if report.ok else "refused: 1 problem")


def test_what_is_no_mistake_has_no_note():
    price = 'assert r.parse(JsonBlock({"p": float}))["p"] == 60.0'
    report = tried(f"if r.parse(Boxed()) and r.parse(Verdict) is Verdict.YES: {price}")
    assert report.verdict == "accepted", str(report)


ROWS = [
    {"prompt": [{"role": "user", "content": "q"}], "reward_model": {"ground_truth": "4"}, "extra_info": {"seed": 7}}
]
ROWS += [{"prompt": "q"}, ROWS[0] | {"extra_info": "none"}]


@pytest.fixture
def team(tmp_path, monkeypatch):
    """Writes team.py with the body of the class `Mine`, and rows.jsonl."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def write(body: str) -> None:
        text = f"from verl_mas import *\nclass Mine(Workflow):\n    {body}"
        (tmp_path / "team.py").write_text(text)

    return write


@pytest.mark.parametrize(("body", "says"), TABLE["classes"])
def test_a_mistake_in_a_class_is_answered_without_a_traceback(team, capsys, body, says):
    team(body.replace("RUN", RUN))
    said = output_of(capsys, "try", "team.py:Mine", code=0 if says.startswith("note") else 1)
    assert says in said and said.count("rule:") + said.count("note:") + said.count("ended in") == 1, said


TEAM = (
    "agents = ('a', 'judge_0')\n    rounds: int = 1\n"
    "    async def run(self, task, team):\n        await team.a.act(str(task.extra_info['seed']))\n"
    "        r = await team.a.act('q')\n        b = await team.judge_0.act('q')\n"
    "        return Outcome(answer=r, reward=float(task.ground_truth == b.text == '4'))\n"
)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["team.py:Mine", "--row", "no.parquet"], "the file must exist"),
        (["team.py:Mine", "--row", "rows.jsonl:3"], "the first one is 0"),
        (["team.py:Mine", "--row", "rows.jsonl:1"], "prompt='q'"),
        (["team.py:Mine", "--row", "rows.jsonl:2"], "extra_info='none'"),
        (["team.py:Mine", "--row", "rows.jsonl", "--task", "q"], "give --row alone"),
        (["team.py:Mine", "--row", "rows.jsonl", "--truth", "4"], "give --row alone"),
        (["team.py:Mine", "--reply", "Judge: 4"], "did you mean 'judge'?"),
        (["team.py:Mine", "--reply", "a: 4", "--reply", "4"], "--reply '4' names no agent"),
        (["team.py:Mine", "--task", "q"], "verl-mas try --row FILE"),
        (["team.py:Mine", "--args", "round=2"], "did you mean 'rounds'?"),
        (["team.py:Mine", "--args", "rounds=two"], "--args.rounds is a whole number"),
        (["team.py:mine"], "did you mean 'Mine'?"),
        (["team.py"], "write team.py:CLASS"),
        (["nofile.py:Mine"], "it must be a Python file"),
        (["nomodule:Mine"], "it must be a Python file"),
    ],
)
def test_a_wrong_argument_of_try_is_answered_with_one_message(team, capsys, arguments, says):
    team(TEAM)
    said = output_of(capsys, "try", *arguments, code=1)
    assert says in said and said.count("fix:") == 1, said


def test_a_row_and_replies_one_after_the_other_are_tried(team, capsys):
    team(TEAM)
    replies = ["--reply", "a: first", "--reply", "a: 4", "--reply", "judge: 4"]
    said = output_of(capsys, "try", "team.py:Mine", "--row", "rows.jsonl:0", *replies)
    assert "answer '4'" in said and "rewards: a 1/1, judge_0 1\n" in said and said.endswith("\naccepted\n")
    said = output_of(capsys, "try", "team.py:Mine", "--row", "rows.jsonl", "--reply", "x", "--reply", "4")
    assert (
        "answer '4'" in said and "rewards: a 0/0, judge_0 0\n" in said
    )  # judge_0 has replies of its own, from the first
