"""Reasons why a request continues or begins a row. `test_histories` compares the tree of acts with a search through all
acts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from verl_mas.gateway.messages import Canonical, spellings
from verl_mas.gateway.tips import Tip, Tips
from verl_mas.verl_.row import Act
from verl_mas.workflow.client import Generation
from verl_mas.workflow.reply import Reply


def user(text: str) -> Canonical:
    return Canonical("user", text)


def assistant(text: str) -> Canonical:
    return Canonical("assistant", text)


def reply_of(row: int = 0, text: str = "r", **generation: object) -> Reply:
    return Reply(Act("a", "a", "main"), [], Generation(text, **generation), row=row)  # type: ignore[arg-type]


@dataclass
class Asked:
    """Requests of one agent, which become acts as in a session."""

    tips: Tips = field(default_factory=Tips)
    rows: int = 0

    def ask(self, *transcript: Canonical, reply: str = "r", tools: str = "", **how: object):
        found = self.tips.find("a", tools, transcript)
        with found.reserved():
            row = found.tip.reply.row if found.tip and found.same_row else self.rows
            self.rows += row == self.rows
        tip = Tip(reply_of(row, reply, **how), found)
        self.tips.add("a", tools, transcript, spellings(assistant(reply)), tip)
        return found, tip


def test_a_reply_is_continued_by_one_request_and_branched_from_by_others():
    asked = Asked()
    asked.ask(user("1"))
    assert asked.ask(user("1"), assistant("r"), user("2"))[0].same_row
    again, _ = asked.ask(user("1"), assistant("r"), user("3"))
    assert again.known == 2 and not again.same_row and again.continuation.row is None and asked.rows == 2
    assert again.origin.endswith("as another request continued them: messages[2] (user) was edited")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"stop_reason": "length"}, "new: its reply was cut at the maximal length"),
        ({"full": True}, "new: its row is full"),
        ({"prompt_ids": [1]}, "new: its reply is empty"),
    ],
)
def test_a_reply_without_an_end_of_turn_is_not_continued(how, why):
    asked = Asked()
    asked.ask(user("1"), **how)
    assert asked.ask(user("1"), assistant("r"), user("2"))[0].origin == why


def test_a_request_that_begins_a_row_says_what_is_new():
    asked = Asked()
    asked.ask(user("1"))
    transcript = user("1"), assistant("r"), user("2")
    origins = [asked.tips.find(*request).origin for request in (
        ("a", "[]", transcript), ("b", "", transcript), ("a", "", [user("2")]), ("a", "[]", [user("2")]),
        ("a", "", [user("1")]), ("a", "", [user("1"), assistant("s"), user("2")]),
        ("a", "", [user("1"), assistant("r")]),
    )]  # fmt: skip
    assert origins == [
        "new: the tools changed",
        "new: the first request of b",
        "new: another prompt",
        "new: other tools, and another prompt",
        "new: it was asked before",
        "new: messages[1] (assistant) was edited",
        "new: the last message is of the assistant",
    ]
