"""Reasons why a request continues or begins a row. `test_histories` compares the tree of acts with a search through all
acts."""

from __future__ import annotations

from contextlib import suppress

import pytest

from verl_mas.gateway.messages import Canonical, spellings
from verl_mas.gateway.tips import Found, Tip, Tips
from verl_mas.verl_.row import Act
from verl_mas.workflow.client import Generation
from verl_mas.workflow.reply import Reply

ROLES = {"s": "system", "S": "system", "r": "assistant", "R": "assistant"}
BRANCHED = "branched after 2 messages, as another request continued them"


def transcript(letters: str) -> list[Canonical]:
    """Make a message of each letter: s is the system's, r the assistant's, digits are the user's; capitals are
    edited."""
    return [Canonical(ROLES.get(letter, "user"), letter) for letter in letters]


def ask(tips: Tips, letters: str, tools: str = "", row: int = 0, **generation: object) -> Found:
    """Send a request, whose reply is r."""
    found = tips.find("a", tools, transcript(letters))
    made = Generation("r", **generation)  # type: ignore[arg-type]
    with found.reserved():
        tip = Tip(Reply(Act("a", "a", "main"), [], made, row=row), found)
    tips.add("a", tools, transcript(letters), spellings(*transcript("r")), tip)
    return found


@pytest.mark.parametrize(
    ("earlier", "letters", "origin"),
    [
        (["1"], "1r2", "continued after 2 messages"),
        (["1", "1r2"], "1r2r3", "continued after 4 messages"),
        (["1", "1"], "1r2", "continued after 2 messages"),
        (["1", "1r2"], "1r3", f"{BRANCHED}: messages[2] (user) was edited"),
        (["1"], "2", "new: another prompt"),
        (["1"], "1", "new: it was asked before"),
        (["1"], "1R2", "new: messages[1] (assistant) was edited"),
        (["1"], "1r", "new: the last message is of the assistant"),
        (["s1"], "S1r2", "new: the system prompt changed"),
        (["1", "1r2"], "12r3", "new: 1 messages from messages[1] (assistant) on were dropped"),
        (["1"], "12r3", "new: 1 messages were inserted at messages[1] (user)"),
        (["12"], "1R3", "new: messages[1] is of the assistant, and was of the user"),
        ([], "1", "new: the first request of a"),
    ],
)  # fmt: skip
def test_a_request_says_why_it_continues_or_begins_a_row(earlier, letters, origin):
    tips = Tips()
    for each in earlier:
        ask(tips, each)
    assert ask(tips, letters).origin == origin


def test_the_tools_are_a_part_of_the_reason():
    tips = Tips()
    ask(tips, "1")
    assert ask(tips, "1r2", tools="[]").origin == "new: the tools changed"
    assert ask(tips, "2", tools="[1]").origin == "new: other tools, and another prompt"


def test_the_last_of_equal_replies_is_continued_and_then_the_other_one():
    tips = Tips()
    for row in (1, 2):
        ask(tips, "1", row=row)
    assert [ask(tips, f"1r{number}").tip.reply.row for number in range(3)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"stop_reason": "length"}, "new: its reply was cut at the maximal length"),
        ({"full": True}, "new: its row is full"),
        ({"prompt_ids": [1]}, "new: its reply is empty"),
    ],
)
def test_a_reply_without_an_end_of_turn_is_not_continued(how, why):
    tips = Tips()
    ask(tips, "1", **how)
    assert ask(tips, "1r2").origin == why


def test_a_request_whose_act_fails_leaves_its_row_to_another_request():
    tips = Tips()
    ask(tips, "1")
    found = tips.find("a", "", transcript("1r2"))
    with suppress(ZeroDivisionError), found.reserved():
        raise ZeroDivisionError
    found = ask(tips, "1r2")
    assert found.same_row and found.continuation.row == found.tip.reply.row
    again = ask(tips, "1r3")
    assert not again.same_row and again.known == 2 and again.continuation.row is None
