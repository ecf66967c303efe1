"""Which act a request continues, and why. `test_histories` compares the tree of acts with a search through all acts."""

from contextlib import suppress

import pytest

from verl_mas.gateway.messages import Canonical, spellings
from verl_mas.gateway.tips import Tip, Tips, remove
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
    made = Generation(reply, **generation)  # type: ignore[arg-type]
    with found.reserved():
        tip = Tip(Reply(Act("a", "a", "main"), [{}, {"content": letters}], made, row=row), found)
    tips.add("a", tools, transcript(letters), spellings(*transcript(reply)), tip)
    return tip


def origin(tips: Tips, letters: str, **how: object) -> str:
    return ask(tips, letters, **how).found.origin  # type: ignore[arg-type]


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
    assert origin(tips, letters) == why


def test_the_tools_are_a_part_of_the_reason():
    tips = Tips()
    ask(tips, "1")
    assert origin(tips, "1r2", tools="[]") == "new: the tools changed"
    assert origin(tips, "2", tools="[1]") == "new: other tools, and another prompt"


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
    assert origin(tips, "1r2") == f"new: {why}"


def test_the_engine_gets_the_messages_of_the_row_and_the_new_ones():
    tips = Tips()
    ask(tips, "1")
    found = ask(tips, "1r2").found
    assert (found.known, found.continuation.known, found.continuation.row) == (2, 3, 0)
    reply, new = {"role": "assistant", "content": "r"}, {"content": "2"}
    assert found.messages([{}, {}, new]) == [{}, {"content": "1"}, reply, new]
    assert ask(tips, "1r3").found.continuation.row is None


def test_the_last_of_equal_replies_is_continued_and_then_the_other_one():
    tips = Tips()
    for row in (1, 2):
        ask(tips, "1", row=row)
    assert [ask(tips, f"1r{number}").found.tip.reply.row for number in range(3)] == [2, 1, 2]


def test_a_thought_may_be_left_out_and_another_thought_is_another_row():
    tips = Tips()
    for row, thought in enumerate("xy"):
        ask(tips, "1", reply=thought, row=row)
    assert ask(tips, "1x2", row=0).found.tip.reply.row == 0
    assert ask(tips, "1r2", row=1).found.tip.reply.row == 1
    assert ask(tips, "1x2r3").found.tip.reply.row == 0


def test_a_request_whose_act_fails_leaves_its_row_to_another_request():
    tips = Tips()
    ask(tips, "1")
    with suppress(ZeroDivisionError), tips.find("a", "", transcript("1r2")).reserved():
        raise ZeroDivisionError
    assert origin(tips, "1r2") == "continued after 2 messages"


def test_an_act_that_reached_no_program_leaves_its_row_to_another_request():
    tips = Tips()
    ask(tips, "1")
    remove(ask(tips, "1r2"))
    assert origin(tips, "1r2r3") == "continued after 2 messages"
