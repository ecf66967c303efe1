"""Exceptions that code of users and libraries raises, and a team that raises each of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from tokenizers import Tokenizer, models, pre_tokenizers

from verl_mas.workflow import Outcome, Task, Team, Workflow

PLACES = ("workflow", "task", "after an act")


def panic() -> None:
    """Raise the error of a panic in Rust code (tokenizers, polars, pydantic-core). It is not an Exception."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1, stride=1)
    tokenizer.encode("a a a")


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def raise_it(*_: object, **__: object) -> NoReturn:
        raise error

    return raise_it


ESCAPES: Sequence[Callable[[], object]] = [
    panic,
    raises(ValueError("plain")),
    raises(BaseException("such as a group of exceptions")),
    raises(SystemExit(1)),
    raises(KeyboardInterrupt()),
    raises(GeneratorExit()),
    raises(StopIteration()),
]


class Raising(Workflow):
    """A team in which every other session raises the next exception of `ESCAPES`, at the next place of `PLACES`."""

    agents = ("writer", "copier")

    async def run(self, task: Task, team: Team) -> Outcome:
        number = int(str(task.extra_info["index"])) * 2 + task.session // 2
        escape = ESCAPES[number % len(ESCAPES)]
        place = PLACES[number // len(ESCAPES) % len(PLACES)] if task.session % 2 else ""

        async def part() -> None:
            escape()

        if place == "workflow":
            escape()
        if place == "task":
            await asyncio.gather(part(), asyncio.sleep(0))
        draft = await team.writer.act(task.messages)
        if place == "after an act":
            escape()
        return Outcome(answer=await team.copier.act(f"{task.question} {draft}"))
