"""Transcripts show a session, and escape hostile text."""

from __future__ import annotations

import verl_mas
from verl_mas.config.schema import AgentSpec, BranchSpec
from verl_mas.testing.scripted_llm import ScriptedLLM, calls

HOSTILE = "\x1b[2J\x07\u202eevil\u2066 <script>alert(1)</script> [bold]x[/bold] & \r\x00"


class Branching(verl_mas.Workflow):
    agents = ("writer", "judge")
    branches = True

    async def run(self, task, team):
        team.draw("a board", "start")
        replies = await team.writer.branch(task.messages, k=2)
        for reply in replies:
            reply.reward = float(reply.text)
        chosen = team.commit(replies)
        team.draw(lambda: "board two", "later")
        return verl_mas.Outcome(await team.judge.act(f"Judge {chosen}."), reward=0.5, info={"acc": 1.0})


def press(button: str) -> str:
    """Press a button."""
    return f"{button} is on"


def test_a_transcript_has_acts_in_order_candidates_rewards_boards_calls_and_each_prompt_once():
    judge = [calls(("press", {"button": "red"}), ("pres", {}), text="Now."), "Fine."]
    llm = ScriptedLLM({"writer": lambda request, branch: str(branch), "judge": judge})
    settings = {"branch": BranchSpec(k=2, commit="greedy"), "agents": {"judge": AgentSpec(tools=["press"])}}
    assert str(verl_mas.run(Branching(), "Write.", llm, tools=[press], **settings)).splitlines() == [
        "  start",
        "  a board",
        "  user: Write.",
        "writer, turn 0, candidate 0 of 2",
        "  reward 0.5 · 1 tokens",
        "  0",
        "writer, turn 0, candidate 1 of 2 (committed)",
        "  reward 1.5 (team 0.5, local 1) · 1 tokens",
        "  1",
        "  later",
        "  board two",
        "  user: Judge 1.",
        "judge, turn 0",
        "  reward 0.5 · 41 tokens",
        "  Fine.",
        '    press({"button": "red"}) -> red is on',
        "    pres({}) -> error: Unknown function 'pres'. Available tools: ['press']",
        "answer Fine. · team reward 0.5 · acc 1.0",
    ]


def test_escape_sequences_and_html_of_a_model_are_shown_as_text():
    session = verl_mas.run("single", HOSTILE, ScriptedLLM(HOSTILE))
    for text in (str(session), session._repr_html_()):
        assert not any(mark in text for mark in "\x1b\x07\u202e\u2066\r\x00")
        assert r"\x1b[2J\x07\u202eevil\u2066" in text
    html = session._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;alert(1)&lt;/script&gt;" in html and " &amp; " in html


def test_a_reply_of_ten_megabytes_is_cut():
    text = str(verl_mas.run("single", "q", ScriptedLLM("x" * 10_000_000)))
    assert len(text) < 20_000 and "... (10000000 characters)" in text
