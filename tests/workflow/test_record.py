"""Content of a session record."""

import pytest

import verl_mas
from verl_mas.config.schema import AgentSpec
from verl_mas.run_folder.records import packed, unpacked
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.record import Recording
from verl_mas.workflow.tools import ToolResult


def letters(ids):
    return [chr(token) for token in ids]


def press(button: str) -> ToolResult:
    """Press a button."""
    return ToolResult(f"{button} is on", reward=0.5)


@pytest.fixture
def with_tools():
    llm = ScriptedLLM([calls(("press", {"button": "red"}), text="Now."), "Done."])
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
