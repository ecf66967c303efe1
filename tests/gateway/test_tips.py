"""Which act a request continues, and why. `test_histories` compares the tree of acts with a search through all acts."""

import pytest

from verl_mas.gateway.tips import Canonical, Tip, Tips, canonical, remove, spellings
from verl_mas.verl_.row import Act
from verl_mas.workflow.client import Generation
from verl_mas.workflow.reply import Reply

ROLES = {"s": "system", "S": "system", **dict.fromkeys("rRxy", "assistant")}
BRANCHED = "branched after 2 messages, as another request continued them"


def transcript(letters: str) -> list[Canonical]:
    """Make a message of each letter: s is the system's, r the assistant's, digits are the user's. Capitals are edited;
    x and y are r with a thought."""
    thoughts = {letter: f"<think>{letter}</think>r" for letter in "xy"}
    return [Canonical(ROLES.get(letter, "user"), thoughts.get(letter, letter)) for letter in letters]


def ask(tips: Tips, letters: str, reply: str = "r", tools: str = "", row: int = 0, **generation: object) -> Tip:
    """Send a request, which becomes an act as in a session."""
    found = tips.find("a", tools, transcript(letters))
    with found.reserved():
        made = Generation(reply, **generation)  # type: ignore[arg-type]
        tip = Tip(Reply(Act("a", "a", "main"), [{}, {"content": letters}], made, row=row), found)
    tips.add("a", tools, transcript(letters), spellings(*transcript(reply)), tip)
    return tip


@pytest.mark.parametrize(
    ("earlier", "letters", "why"),
    [
        ("1", "1r2", "continued after 2 messages"),
        ("1 1r2", "1r2r3", "continued after 4 messages"),
        ("1 1r2", "1r3", f"{BRANCHED}: messages[2] (user) was edited"),
        ("1", "2", "new: another prompt"),
        ("1", "1", "new: it was asked before"),
        ("1", "1R2", "new: messages[1] (assistant) was edited"),
        ("1", "1r", "new: the last message is of the assistant"),
        ("s1", "S1r2", "new: the system prompt changed"),
        ("1 1r2", "12r3", "new: 1 messages from messages[1] (assistant) on were dropped"),
        ("1", "12r3", "new: 1 messages were inserted at messages[1] (user)"),
        ("12", "1R3", "new: messages[1] is of the assistant, and was of the user"),
        ("", "1", "new: the first request of a"),
    ],
)
def test_a_request_says_why_it_continues_or_begins_a_row(earlier, letters, why):
    tips = Tips()
    for each in earlier.split():
        ask(tips, each)
    assert ask(tips, letters).found.origin == why


def test_the_tools_are_a_part_of_the_reason():
    tips = Tips()
    ask(tips, "1")
    assert ask(tips, "1r2", tools="[]").found.origin == "new: the tools changed"
    assert ask(tips, "2", tools="[1]").found.origin == "new: other tools, and another prompt"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"stop_reason": "length"}, "its reply was cut at the maximal length"),
        ({"full": True}, "its row is full"),
        ({"prompt_ids": [1]}, "its reply is empty"),
    ],
)
def test_a_reply_without_an_end_of_turn_is_not_continued(how, why):
    tips = Tips()
    ask(tips, "1", **how)
    assert ask(tips, "1r2").found.origin == f"new: {why}"


def test_the_engine_gets_the_messages_of_the_row_and_the_new_ones():
    tips = Tips()
    ask(tips, "1")
    found = ask(tips, "1r2").found
    assert (found.known, found.continuation.known, found.continuation.row) == (2, 3, 0)
    new = {"content": "2"}
    assert found.messages([{}, {}, new]) == [{}, {"content": "1"}, {"role": "assistant", "content": "r"}, new]


def test_the_last_of_equal_replies_is_continued_and_then_the_other_one():
    tips = Tips()
    for row in (1, 2):
        ask(tips, "1", row=row)
    assert [ask(tips, f"1r{number}").found.tip.reply.row for number in range(3)] == [2, 1, 2]


def test_a_thought_may_be_left_out_and_another_thought_is_another_row():
    tips = Tips()
    for row, thought in enumerate("xy"):
        ask(tips, "1", reply=thought, row=row)
    assert [ask(tips, letters, row=row).found.tip.reply.row for letters, row in (("1x2", 0), ("1r2", 1))] == [0, 1]
    assert ask(tips, "1x2r3").found.tip.reply.row == 0


def test_an_act_that_reached_no_program_leaves_its_row_to_another_request():
    tips = Tips()
    ask(tips, "1")
    remove(ask(tips, "1r2"))
    assert ask(tips, "1r2r3").found.origin == "continued after 2 messages"


def call(arguments, name="add", **more):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"role": "assistant", "content": "4"}, {"role": "assistant", "content": "4 "}, False),
        ({"role": "user", "content": "4", "name": "a"}, {"role": "user", "content": "4", "name": "b"}, False),
        ({"role": "tool", "content": "4", "name": "a"}, {"role": "tool", "content": "4", "name": "b"}, True),
        ({"role": "user", "content": "4"}, {"role": "tool", "content": "4"}, False),
        ({"role": "user", "content": [image("a")]}, {"role": "user", "content": [image("b")]}, False),
        (call('{"a": 1}'), call('{"a": 1.5}'), False),
        (call('{"a": 1}'), call('{"a": 1}', name="sub"), False),
        (call('{"a": 1, "b": 2}', id="x"), call({"b": 2, "a": 1}), True),
    ],
)
def test_messages_are_equal_if_a_template_renders_them_equally(one, other, same):
    assert (canonical(one) == canonical(other)) == same


def test_a_thought_may_begin_in_the_prompt_and_may_come_back():
    thought = Canonical("assistant", "why</think>a")
    assert [each.content for each in spellings(thought)] == ["why</think>a", "a"]
    assert [each.content for each in spellings(thought, "END")][2:] == ["a", "aEND"]
    assert [*spellings(thought, thinking=False)] == [thought]
