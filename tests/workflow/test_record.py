"""Content of a session record, and its transcript, in which hostile text is escaped."""

import pytest

import verl_mas
from verl_mas.config.schema import AgentSpec, BranchSpec
from verl_mas.run_folder.records import packed, unpacked
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.record import Recording, as_text
from verl_mas.workflow.tools import ToolResult


def letters(ids):
    return [chr(token) for token in ids]


def press(button: str) -> ToolResult:
    """Press a button."""
    return ToolResult(f"{button} is on", reward=0.5)


@pytest.fixture
def with_tools():
    llm = ScriptedLLM([calls(("press", {"button": "red"}), ("pres", {}), text="Now."), "Done."])
    return verl_mas.run("single", "q", llm, agents={"solver": AgentSpec(tools=["press"])}, tools=[press])


def test_the_tokens_of_an_act_are_those_it_sampled_with_their_log_probs(run):
    async def talk(task, team):
        talk = team.a.conversation()
        await talk.act("one")
        return verl_mas.Outcome(await talk.act("two"), reward=1.0)

    session = run(talk, ScriptedLLM(["first", "then"])).session
    first, second = session.record(how=Recording(tokens={"main": letters}))["acts"]
    # Both acts are one row, whose tokens also have the second message.
    assert first["tokens"] == [[letter, -0.5] for letter in "first"]
    assert second["tokens"] == [[letter, -0.5] for letter in "then"]
    assert session.record(how=Recording(tokens={"other": letters}))["acts"][0]["tokens"] is None


def test_tokens_are_cut_with_their_text():
    session = verl_mas.run("single", "q", ScriptedLLM("abcdefgh"))
    (act,) = session.record(how=Recording(max_text_chars=3, tokens={"main": letters}))["acts"]
    assert act["text"] == "abc... (8 characters)" and [text for text, _ in act["tokens"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [([-0.123, float("nan"), -float("inf")], [-0.12, None, None]), ([-1.0], [None] * 3), (None, [None] * 3)],
)
def test_log_probs_are_stored_in_hundredths_and_what_is_not_a_number_is_none(given, stored):
    session = verl_mas.run("single", "q", ScriptedLLM("abc"))
    object.__setattr__(session.replies[0].generation, "log_probs", given)
    (act,) = unpacked(packed(session.record(how=Recording(tokens={"main": letters}))))["acts"]
    assert act["tokens"] == [list(token) for token in zip("abc", stored, strict=True)]


def test_a_record_of_a_live_session_is_plain_data_and_names_the_parts_of_a_local_reward(with_tools):
    with_tools.replies[0].reward = 0.25
    record = with_tools.record()
    assert unpacked(packed(record)) == record and (record["status"], record["group"]) == (None, "task")
    (act,) = record["acts"]
    assert act["tool_calls"][0]["result"] == "red is on"
    parts = {"act": 0.25, "tools": 0.5}
    assert act["reward"] == {"team": 0.0, "local": 0.75, "penalty": 0.0, "score": 0.75, "parts": parts}
    (plain,) = verl_mas.run("single", "q", ScriptedLLM("x")).record()["acts"]
    assert plain["reward"]["parts"] == {}


def test_an_image_is_what_the_recording_makes_of_it():
    part = {"type": "image", "image": object()}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part, {"type": "video", "video": 1}]}]
    session = verl_mas.run("single", verl_mas.Task(messages), ScriptedLLM("x"))
    kept = session.record(how=Recording(images=lambda part: {"type": "image", "file": "images/1.png"}))
    parts = [{"type": "text", "text": "what?"}, {"type": "image", "file": "images/1.png"}, {"type": "video"}]
    assert kept["task"]["messages"][0]["content"] == parts
    assert session.record()["task"]["messages"][0]["content"][1] == {"type": "image"}


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
    text = as_text(record)
    assert "Session task_0 · step 0 · train · dropped · acts 4" in text
    assert "reward 0.5 · advantage -0.500 · 1 tokens · malformed: no tag · cut at its maximal length" in text
    assert "timeout: slow\nin run" in text


def test_calls_of_tools_and_their_results_are_shown(with_tools):
    text = str(with_tools)
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
