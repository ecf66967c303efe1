"""Tasks with six pages and one wanted word on each page. All pages together are three times as long as the context.

This file has the pages, demonstrations of three ways to read them, and the workflows of these ways.

    python recipes/folded/pages.py --out runs/folded --noise 0.1
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
from verl_mas.workflows.folded import Branch, Folding, FoldingRules

PAGES, VALUES = "uvwxyz", "ABCDEFGH"
FILLER, WORDS = string.ascii_lowercase[:13], 32  # the filler words, and the number of words on a page
# This model writes a call as a mark and an argument. FINAL is not a call: it is the mark of the answer.
CALLS = {" >": ("branch", "prompt"), " [": ("page", "name"), " <": ("return", "message")}
FINAL, BEGUN = " =", " !"
ENDED = TURN_END + "\n"  # verl ends a turn with this text if the conversation continues
# The last word of a question: how the model reads the pages.
FOLDED, WINDOW, NOTES = " $", " ?", " #"
WINDOW_TOKENS = 64  # the most tokens of a prompt without branches


def words(texts: Sequence[str]) -> str:
    """Join words with a space before each of them, so that a word is the same token everywhere."""
    return "".join(f" {text}" for text in texts)


class PagesItem(Item):
    """A task, identified by its pages."""

    @property
    def key(self) -> str:
        return str(self.extra["pages"])


def draw(rng: random.Random) -> tuple[list[str], list[str]]:
    """Draw the pages, and the wanted word of each page: the page's name and a value."""
    wanted = [name + rng.choice(VALUES) for name in PAGES]
    return [words(rng.sample([word, *rng.choices(FILLER, k=WORDS - 1)], WORDS)) for word in wanted], wanted


@ToolParser.register("pages")
class PagesParser(ToolParser):
    """Parses calls of two words: a mark and an argument."""

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: object = None
    ) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids).removesuffix(TURN_END)
        mark, argument = text[:2], text[2:]
        if mark not in CALLS or not re.fullmatch(r" \w+", argument):
            return text, []
        name, parameter = CALLS[mark]
        return "", [FunctionCall(name=name, arguments=json.dumps({parameter: argument}))]


def outcome(task: Task, text: str, **info: object) -> Outcome:
    """Reward the share of the wanted words that the answer has at the right position."""
    answer, wanted = text.split()[1:] if text.startswith(FINAL) else [], str(task.ground_truth).split()
    right = sum(given == word for given, word in zip(answer, wanted, strict=False)) / len(PAGES)
    return Outcome(answer=text, reward=right, info={"acc": right, "whole": float(right == 1), **info})


def pages_of(task: Task) -> dict[str, str]:
    return dict(zip(PAGES, str(task.extra_info["pages"]).split("|"), strict=True))


class FoldedPages(Workflow):
    """A branch reads the page that its prompt names, and returns a word of it."""

    agents = ("solver",)
    folding: FoldingRules = field(default_factory=lambda: FoldingRules(instruction=BEGUN, main_tokens=38))

    async def run(self, task: Task, team: Team) -> Outcome:
        pages = pages_of(task)

        def page(name: str) -> str:
            """A page.

            Args:
                name: One of the letters u to z.
            """
            return pages[name.strip()]

        async def in_scope(branch: Branch) -> bool:
            called = [call.parameters or {} for call in branch.reply.tool_calls if call.name == "page"]
            return called == [{"name": branch.prompt}]

        folding = Folding(team.solver, [page], self.folding, in_scope)
        reply = await folding.act(FOLDED)
        return outcome(task, reply.text, **folding.info)


class WindowPages(Workflow):
    """Reads one page per turn. If the history is too long, its oldest messages are dropped."""

    agents = ("solver",)
    mark: Literal[" ?", " #"] = " ?"
    """Words that a turn repeats before it names the next page. ` ?`: the wanted word of the last page; ` #`: the wanted
    words of all pages so far."""

    async def run(self, task: Task, team: Team) -> Outcome:
        pages = pages_of(task)
        history: list[Message] = [{"role": "user", "content": self.mark}]
        reply = await team.solver.act(history)
        while (asked := re.fullmatch(r"(?: \w+)* \[ ([u-z])", reply.text)) and len(history) <= 2 * len(PAGES):
            history += [reply.message, {"role": "user", "content": pages[asked[1]]}]
            reply = await team.solver.act(history)
        return outcome(task, reply.text, turns=len(history) // 2)


def thread(opening: str, turns: Sequence[tuple[str, str]]) -> Iterator[Lesson]:
    """Yield the lessons of a thread. `turns`: each reply, and the text that follows it."""
    for reply, following in turns:
        yield Lesson("solver", opening, reply)
        opening += reply + ENDED + following


def folded(pages: Sequence[str], found: Sequence[str]) -> Iterator[Lesson]:
    turns = list[tuple[str, str]]()
    for page, word in zip(pages, found, strict=True):
        before = "".join(reply + ENDED + result for reply, result in turns)
        branch = f"{FOLDED}{before} > {word[0]}{ENDED}{BEGUN}"
        yield from thread(branch, [(f" [ {word[0]}", page), (f" < {word}", "")])
        turns.append((f" > {word[0]}", f" {word}"))
    yield from thread(FOLDED, [*turns, (FINAL + words(found), "")])


def windowed(pages: Sequence[str], found: Sequence[str], mark: str) -> Iterator[Lesson]:
    history = list[str]()
    for place, page in enumerate(pages):
        noted = found[:place] if mark == NOTES else found[max(place - 1, 0) : place]
        reply = f"{words(noted)} [ {PAGES[place]}"
        yield Lesson("solver", mark + _newest(history), reply)
        history += [reply + TURN_END, page]
    yield Lesson("solver", mark + _newest(history), FINAL + words(found))


def _newest(history: Sequence[str]) -> str:
    """Return the part of a history that `truncation: drop_oldest` keeps."""
    while 1 + sum(text.count(" ") + text.count(TURN_END) for text in history) > WINDOW_TOKENS:
        history = history[1:]
    return "".join(history)


@DATA_SETS.register("pages")
class Pages(Generated):
    """Tasks with six pages of many words, and one wanted word on each page."""

    warm_up = WarmUp(steps=600, batch=64, learning_rate=3e-3, lessons=25_000, texts=2_000, vocabulary=400, initial=0.1)
    rows = (2_000, 150)

    def generate(self, options: argparse.Namespace) -> Prepared:
        def items(count: int, split: str) -> list[Item]:
            rng = random.Random(f"pages {split} {options.seed}")
            drawn = [draw(rng) for _ in range(count)]
            return [PagesItem(FOLDED, words(word), "pages", extra={"pages": "|".join(pages)}) for pages, word in drawn]

        train, test = items(options.train_rows, TRAIN), items(options.test_rows, TEST)
        return Prepared(train, test, test, {"pages": {"seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        rng = random.Random(f"pages lessons {options.seed}")
        while True:
            pages, wanted = draw(rng)
            found = [word if rng.random() >= options.noise else word[0] + rng.choice(VALUES) for word in wanted]
            ways = (folded(pages, found), windowed(pages, found, WINDOW), windowed(pages, found, NOTES))
            for *turns, answer in map(list, ways):
                yield from (*rng.sample(turns, 4), answer)


if __name__ == "__main__":
    sys.exit(main(["data", "pages", *sys.argv[1:]]))
