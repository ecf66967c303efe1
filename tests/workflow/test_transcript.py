"""Transcripts show a session, and escape hostile text."""

import pytest

import verl_mas
from verl_mas.config.schema import AgentSpec, BranchSpec
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import transcript

HOSTILE = "\x1b[2J\x07\u202eevil\u2066 <script>alert(1)</script> [bold]x[/bold] & \r\x00"


class Branching(verl_mas.Workflow):
    agents = ("writer", "judge")
    branches = True

    async def run(self, task, team):
        team.draw("a board", "start")
        replies = await team.writer.branch(task.messages, k=3)
        for reply in replies:
            reply.reward = float(reply.text)
        chosen = team.commit(replies)
        team.draw(lambda: "board two", "later")
        return verl_mas.Outcome(await team.judge.act(f"Judge {chosen}."), reward=0.5, info={"acc": 1.0})


def branched():
    llm = ScriptedLLM({"writer": lambda request, branch: str(branch), "judge": "Fine."})
    return verl_mas.run(Branching(), "Write.", llm, branch=BranchSpec(k=3, commit="greedy"))


def test_a_transcript_has_acts_in_order_candidates_rewards_boards_and_each_prompt_once():
    assert str(branched()).splitlines() == [
        "Session task_0 · step 0 · acts 4",
        "  start",
        "  a board",
        "  user: Write.",
        "writer, turn 0, candidate 0 of 3",
        "  reward 0.5 · 1 tokens",
        "  0",
        "writer, turn 0, candidate 1 of 3",
        "  reward 1.5 (team 0.5, local 1) · 1 tokens",
        "  1",
        "writer, turn 0, candidate 2 of 3 (committed)",
        "  reward 2.5 (team 0.5, local 2) · 1 tokens",
        "  2",
        "  later",
        "  board two",
        "  user: Judge 2.",
        "judge, turn 0",
        "  reward 0.5 · 5 tokens",
        "  Fine.",
        "answer Fine. · team reward 0.5 · acc 1.0",
    ]


def test_a_record_that_was_read_shows_what_the_trainer_added():
    record = branched().record("dropped")
    record["acts"][0] |= {"advantage": -0.5, "malformed": "no tag", "stop_reason": "length"}
    record["faults"] = [{"kind": "timeout", "cause": "slow", "traceback": "in run"}]
    text = transcript.as_text(record)
    assert "Session task_0 · step 0 · train · dropped · acts 4" in text
    assert "reward 0.5 · advantage -0.500 · 1 tokens · malformed: no tag · cut at its maximal length" in text
    assert "timeout: slow\nin run" in text


def test_calls_of_tools_and_their_results_are_shown():
    def press(button: str) -> str:
        """Press a button."""
        return f"{button} is on"

    script = [calls(("press", {"button": "red"}), ("pres", {}), text="Now."), "Done."]
    agents = {"solver": AgentSpec(tools=["press"])}
    text = str(verl_mas.run("single", "q", ScriptedLLM(script), agents=agents, tools=[press]))
    assert '    press({"button": "red"}) -> red is on' in text and "    pres({}) -> error: Unknown" in text


def test_what_a_terminal_would_obey_is_shown_and_not_sent_and_html_of_a_model_is_text():
    session = verl_mas.run("single", verl_mas.Task([{"role": "user", "content": HOSTILE}]), ScriptedLLM(HOSTILE))
    for text in (str(session), session._repr_html_()):
        assert not any(mark in text for mark in "\x1b\x07\u202e\u2066\r\x00")
        assert r"\x1b[2J\x07\u202eevil\u2066" in text
    html = session._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;alert(1)&lt;/script&gt;" in html and " &amp; " in html


@pytest.mark.parametrize("show", [str, lambda session: session._repr_html_()])
def test_a_reply_of_ten_megabytes_is_cut(show):
    text = show(verl_mas.run("single", "q", ScriptedLLM("x" * 10_000_000)))
    assert len(text) < 20_000 and "... (10000000 characters)" in text
