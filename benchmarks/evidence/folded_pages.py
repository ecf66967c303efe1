"""Six pages, each with one value for the letter that is asked: together they are three times what a context holds.

The pages, a tiny model with demonstrations of three ways to read them, and the workflows of these ways.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.gym.warmup import Generated, Lesson, WarmUp
from verl_mas.testing.tiny_model import TURN_END
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Message, Outcome, Task, Team, Workflow
from verl_mas.workflow.folding import Branch, Folding, FoldingRules

PAGES, PAIRS = 6, 16
LETTERS, VALUES = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGH"
# A call, as this model writes it: a mark and an argument. FINAL is not a call.
CALLS = {" >": ("branch", "prompt"), " [": ("page", "number"), " <": ("return", "message")}
FINAL, BEGUN, PAGE = " =", " !", " ["
# The last word of a question: how the model reads the pages.
FOLDED, WINDOW, NOTES = " $", " ?", " #"
PROMPT_TOKENS = 60  # of the arms without branches


def words(letters: Sequence[str]) -> str:
    """With a blank before each, so that a word is the same token everywhere."""
    return "".join(f" {letter}" for letter in letters)


def draw(rng: random.Random) -> tuple[str, list[str], str]:
    """The letter that is asked, the pages, and its value on each."""
    asked, pages, values = rng.choice(LETTERS), [], ""
    for _ in range(PAGES):
        letters = rng.sample([letter for letter in LETTERS if letter != asked], PAIRS - 1)
        letters.insert(rng.randrange(PAIRS), asked)
        on_page = {letter: rng.choice(VALUES) for letter in letters}
        pages.append(words([part for pair in on_page.items() for part in pair]))
        values += on_page[asked]
    return asked, pages, values


@ToolParser.register("pages")
class PagesParser(ToolParser):
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
    wanted, answer = str(task.ground_truth), text.split()[1:] if text.startswith(FINAL) else []
    right = sum(given == value for given, value in zip(answer, wanted, strict=False)) / PAGES
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
            read = [call.parameters["number"] for call in branch.reply.tool_calls if call.name == "page"]
            return read == [branch.prompt]

        folding = Folding(team.solver, [page], self.folding, in_scope)
        reply = await folding.act(f" {task.question}{FOLDED}")
        return outcome(task, reply.text, **folding.info)


class WindowPages(Workflow):
    """A turn per page. Of a history that is too long, the oldest messages are dropped."""

    agents = ("solver",)
    mark: Literal[" ?", " #"] = WINDOW  # type: ignore[assignment]

    async def run(self, task: Task, team: Team) -> Outcome:
        pages, text = pages_of(task), ""
        history: list[Message] = [{"role": "user", "content": f" {task.question}{self.mark}"}]
        for _ in range(PAGES + 1):
            reply = await team.solver.act(history)
            text = reply.text
            number = text[-1:] if text[-4:-2] == PAGE else ""
            if number not in "123456"[:PAGES] or not number:
                break
            history += [reply.message, {"role": "user", "content": pages[int(number) - 1]}]
        return outcome(task, text, turns=len(history) // 2)


def thread(opening: str, turns: Sequence[tuple[str, str]]) -> Iterator[Lesson]:
    """The lessons of a thread: replies, each with what follows it."""
    text = opening
    for reply, following in turns:
        yield Lesson("solver", text, reply)
        text += reply + TURN_END + following


def folded(asked: str, pages: Sequence[str], found: str, answer: str, skipped: bool) -> Iterator[Lesson]:
    """With `skipped`, the main thread answers before it has read the last page."""
    opening, turns = f" {asked}{FOLDED}", []
    for place, page in enumerate(pages):
        number = f" {place + 1}"
        if place == PAGES - 1 and skipped:
            break
        begun = "".join(f"{reply}{TURN_END}{result}" for reply, result in turns)
        turns.append((f" >{number}", f" {found[place]}"))
        *_, read, returned = thread(
            f"{opening}{begun} >{number}{TURN_END}{BEGUN}", [(f" [{number}", page), (f" < {found[place]}", "")]
        )
        yield from (read, returned)
    yield from thread(opening, [*turns, (FINAL + words(answer), "")])


def windowed(asked: str, pages: Sequence[str], found: str, answer: str, mark: str) -> Iterator[Lesson]:
    """Each reply has the value of the page before, with notes of all, and the number of the next one."""
    opening, history = f" {asked}{mark}", list[str]()
    for place in range(PAGES + 1):
        noted = found[:place] if mark == NOTES else found[max(place - 1, 0) : place]
        reply = words(noted) + f" [ {place + 1}" if place < PAGES else FINAL + words(answer)
        kept = history
        while kept and _tokens(opening) + sum(map(_tokens, kept)) > PROMPT_TOKENS:
            kept = kept[1:]
        yield Lesson("solver", opening + "".join(kept), reply)
        if place < PAGES:
            history += [reply + TURN_END, pages[place]]


def _tokens(text: str) -> int:
    return text.count(" ") + text.count(TURN_END)


@DATA_SETS.register("pages")
class Pages(Generated):
    """Six pages with a value each for the letter that is asked."""

    warm_up = WarmUp(
        steps=2_000, batch=64, learning_rate=2e-3, lessons=60_000, texts=2_000, vocabulary=400, initial=0.1
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
            yield from folded(asked, pages, found, found, rng.random() < options.noise)
            for mark in (WINDOW, NOTES):
                known = found if mark == NOTES else "".join(rng.choices(VALUES, k=PAGES - 2)) + found[-2:]
                yield from windowed(asked, pages, found, known, mark)
