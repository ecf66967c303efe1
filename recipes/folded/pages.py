"""Six pages, on each of which the letter that is asked has a value: together three times what a context holds.

The pages, demonstrations of three ways to read them, and the workflows of these ways.

    python recipes/folded/pages.py --out runs/folded --noise 0.15
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from verl_mas import Message, Outcome, Task, Team, Workflow
from verl_mas.cli import main
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.gym.warmup import Generated, Lesson, WarmUp
from verl_mas.testing.tiny_model import TURN_END
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow.folding import Branch, Folding, FoldingRules

PAGES, ENTRIES, VALUES = 6, 32, "ABCDEFGH"
LETTERS = string.ascii_lowercase + "IJKLMNOPQRSTUV"
# A call, as this model writes it: a mark and an argument. FINAL is not a call.
CALLS = {" >": ("branch", "prompt"), " [": ("page", "number"), " <": ("return", "message")}
FINAL, BEGUN = " =", " !"
# The last word of a question: how the model reads the pages.
FOLDED, WINDOW, NOTES = " $", " ?", " #"
WINDOW_TOKENS = 60  # of a prompt without branches


def words(texts: Sequence[str]) -> str:
    """With a blank before each, so that a word is the same token everywhere."""
    return "".join(f" {text}" for text in texts)


def draw(rng: random.Random) -> tuple[str, list[str], str]:
    """The letter that is asked, the pages, and its value on each. An entry is a letter and its value."""
    asked, values = rng.choice(LETTERS), "".join(rng.choices(VALUES, k=PAGES))
    pages = []
    for value in values:
        letters = rng.sample(LETTERS.replace(asked, ""), ENTRIES - 1)
        entries = [asked + value, *(letter + rng.choice(VALUES) for letter in letters)]
        pages.append(words(rng.sample(entries, ENTRIES)))
    return asked, pages, values


@ToolParser.register("pages")
class PagesParser(ToolParser):
    """Calls of two words."""

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: object = None
    ) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids).removesuffix(TURN_END)
        mark, argument = text[:2], text[2:]
        if mark not in CALLS or not re.fullmatch(r" \w", argument):
            return text, []
        name, parameter = CALLS[mark]
        return "", [FunctionCall(name=name, arguments=json.dumps({parameter: argument}))]


def outcome(task: Task, text: str, **info: object) -> Outcome:
    """The share of the values that the answer has in their places."""
    answer = text.split()[1:] if text.startswith(FINAL) else []
    right = sum(given == value for given, value in zip(answer, str(task.ground_truth), strict=False)) / PAGES
    return Outcome(answer=text, reward=right, info={"acc": right, "whole": float(right == 1), **info})


def pages_of(task: Task) -> list[str]:
    return str(task.extra_info["pages"]).split("|")


class FoldedPages(Workflow):
    """A branch reads the page that its prompt names, and returns a value."""

    agents = ("solver",)
    folding: FoldingRules = field(default_factory=lambda: FoldingRules(instruction=BEGUN, main_tokens=34))

    async def run(self, task: Task, team: Team) -> Outcome:
        pages = pages_of(task)

        def page(number: str) -> str:
            """A page.

            Args:
                number: 1 to 6.
            """
            return pages[int(number) - 1]

        async def in_scope(branch: Branch) -> bool:
            called = [call.parameters or {} for call in branch.reply.tool_calls if call.name == "page"]
            return called == [{"number": branch.prompt}]

        folding = Folding(team.solver, [page], self.folding, in_scope)
        reply = await folding.act(f" {task.question}{FOLDED}")
        return outcome(task, reply.text, **folding.info)


class WindowPages(Workflow):
    """A turn per page. Of a history that is too long, the oldest messages are dropped."""

    agents = ("solver",)
    mark: Literal[" ?", " #"] = " ?"
    """A turn names the next page and has the value of the last one, or those of all before."""

    async def run(self, task: Task, team: Team) -> Outcome:
        pages = pages_of(task)
        history: list[Message] = [{"role": "user", "content": f" {task.question}{self.mark}"}]
        reply = await team.solver.act(history)
        while (asked := re.fullmatch(rf"(?: [A-H])* \[ ([1-{PAGES}])", reply.text)) and len(history) <= 2 * PAGES:
            history += [reply.message, {"role": "user", "content": pages[int(asked[1]) - 1]}]
            reply = await team.solver.act(history)
        return outcome(task, reply.text, turns=len(history) // 2)


def thread(opening: str, turns: Sequence[tuple[str, str]]) -> Iterator[Lesson]:
    """The lessons of a thread: replies, each with what follows it."""
    for reply, following in turns:
        yield Lesson("solver", opening, reply)
        opening += reply + TURN_END + following


def folded(asked: str, pages: Sequence[str], found: str, *, hasty: bool) -> Iterator[Lesson]:
    """With `hasty`, the main thread does not read the last page."""
    opening, turns = f" {asked}{FOLDED}", []
    for place, (page, value) in enumerate(zip(pages, found, strict=True), 1):
        if hasty and place == PAGES:
            break
        before = "".join(reply + TURN_END + result for reply, result in turns)
        branch = f"{opening}{before} > {place}{TURN_END}{BEGUN}"
        yield from thread(branch, [(f" [ {place}", page), (f" < {value}", "")])
        turns.append((f" > {place}", f" {value}"))
    yield from thread(opening, [*turns, (FINAL + words(found), "")])


def windowed(asked: str, pages: Sequence[str], found: str, mark: str) -> Iterator[Lesson]:
    """A reply has the value of the page before, with NOTES those of all before, and the number of the next page."""
    opening, history = f" {asked}{mark}", list[str]()
    for place in range(PAGES):
        noted = found[:place] if mark == NOTES else found[max(place - 1, 0) : place]
        reply = words(noted) + f" [ {place + 1}"
        yield Lesson("solver", opening + _newest(history), reply)
        history += [reply + TURN_END, pages[place]]
    yield Lesson("solver", opening + _newest(history), FINAL + words(found))


def _newest(history: Sequence[str]) -> str:
    """What `truncation: drop_oldest` leaves of it."""
    while 2 + sum(text.count(" ") + text.count(TURN_END) for text in history) > WINDOW_TOKENS:
        history = history[1:]
    return "".join(history)


@DATA_SETS.register("pages")
class Pages(Generated):
    """Six pages, on each of which the letter that is asked has a value."""

    warm_up = WarmUp(
        steps=1_000, batch=64, learning_rate=2e-3, lessons=60_000, texts=4_000, vocabulary=900, initial=0.1
    )
    rows = (2_000, 150)

    def generate(self, options: argparse.Namespace) -> Prepared:
        def items(count: int, split: str) -> list[Item]:
            rng = random.Random(f"pages {split} {options.seed}")
            drawn = [draw(rng) for _ in range(count)]
            return [Item(asked, values, "pages", extra={"pages": "|".join(pages)}) for asked, pages, values in drawn]

        train, test = items(options.train_rows, TRAIN), items(options.test_rows, TEST)
        return Prepared(train, test, test, {"pages": {"seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        rng = random.Random(f"pages lessons {options.seed}")
        while True:
            asked, pages, values = draw(rng)
            found = "".join(rng.choice(VALUES) if rng.random() < options.noise else value for value in values)
            yield from folded(asked, pages, found, hasty=rng.random() < options.noise)
            for mark in (WINDOW, NOTES):
                yield from windowed(asked, pages, found, mark)


if __name__ == "__main__":
    sys.exit(main(["data", "pages", *sys.argv[1:]]))
