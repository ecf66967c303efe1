"""Tables of symbols, cut into shards. The question is which symbol is two steps from a given one, and the two steps are
in different shards. The team is a leader with workers, each of which reads one shard. The control is one reader."""

from __future__ import annotations

import argparse
import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verl_mas.cli._arguments import check_noise
from verl_mas.config.schema import WorkflowSpec
from verl_mas.config.values import Count
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item, with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.testing.tiny_model import TURN_END
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Malformed, Message, Outcome, Reply, Request, Task, Team, Workflow, register_workflow
from verl_mas.workflow.base import resolve
from verl_mas.workflow.client import DatasetFields
from verl_mas.workflow.codecs import checked
from verl_mas.workflow.team import Prompt
from verl_mas.workflows.leader_workers import Delegating, Delegation, FinalAnswer, Move

SYMBOLS = string.ascii_lowercase + string.ascii_uppercase
SOURCE, SHUFFLED = "lookup", "lookup_shuffled"
SHARDS = "shards"  # key in `extra_info`
CUT = "|"  # between the shards in a row
HOPS = 2


@dataclass(frozen=True)
class Table:
    """A table in which every symbol has a successor. A shard is a text: its number, then the successors of its symbols
    in order.

    With two symbols per shard, "1 d a" says that a is followed by d, and b by a; "2 ..." says what follows c and d.
    """

    shards: tuple[str, ...]

    def path(self, start: str, hops: int = HOPS) -> str:
        """Return the symbols that follow `start`, in order."""
        path, following = start, successors(" ".join(self.shards))
        for _ in range(hops):
            path += following[path[-1]]
        return path[1:]


def successors(text: str) -> dict[str, str]:
    """Parse the successor of each symbol from the shards in a text."""
    following: dict[str, str] = {}
    for number, *values in (shard.split() for shard in re.findall(r"\d+[^\d]*", text)):
        following |= dict(zip(SYMBOLS[(int(number) - 1) * len(values) :], values, strict=False))
    return following


def draw(shards: int, keys: int, rng: random.Random) -> tuple[Table, str]:
    """Draw a cycle through all symbols, and a question whose two steps are in different shards, with equal probability
    for all such pairs."""
    symbols = SYMBOLS[: shards * keys]
    while True:
        order = rng.sample(symbols, len(symbols))
        following = dict(zip(order, order[1:] + order[:1], strict=True))
        asked = rng.choice(symbols)
        if symbols.index(asked) // keys != symbols.index(following[asked]) // keys:
            texts = [
                " ".join([str(number + 1), *(following[symbol] for symbol in symbols[number * keys :][:keys])])
                for number in range(shards)
            ]
            return Table(tuple(texts)), asked


class LookupItem(Item):
    """A question with its table, which is in `extra`."""

    @property
    def key(self) -> str:
        return f"{self.question} {self.extra[SHARDS]}"


def tasks(count: int, shards: int, keys: int, *, split: str, seed: int = 0) -> list[LookupItem]:
    """Draw random questions. There are so many possible tables that the splits share none in practice."""
    rng = random.Random(f"lookup {split} {seed}")
    drawn = [draw(shards, keys, rng) for _ in range(count)]
    return [
        LookupItem(asked, table.path(asked)[-1], SOURCE, extra={SHARDS: CUT.join(table.shards)})
        for table, asked in drawn
    ]


def shuffled(items: Sequence[LookupItem]) -> list[LookupItem]:
    """The control: each question has the shards of the next one. Reports of workers have the same distribution, but say
    nothing about the question."""
    return [replace(item, source=SHUFFLED, extra=other.extra) for item, other in with_next(items)]


def shards_of(extra_info: DatasetFields) -> tuple[str, ...]:
    """Read the shards of a dataset row."""
    shards = tuple(str(extra_info.get(SHARDS) or "").split(CUT))
    if not all(shards):
        rule = "a lookup workflow needs rows with the shards of a table"
        raise DataError(f"extra_info has no {SHARDS!r}", rule=rule, fix="create them with `verl-mas data lookup`")
    return shards


def check_size(shards: int, keys: int) -> None:
    if shards < 2 or keys < 2 or shards * keys > len(SYMBOLS):
        rule = f"a table has at least 2 shards of at least 2 keys, and each of its symbols is one of {len(SYMBOLS)}"
        raise ConfigError(f"--shards {shards} --keys {keys}", rule=rule, fix="use --shards 4 --keys 8")


# Second last word of a prompt, which tells a tiny model with all roles which role to play.
LEADER, WORKER, READER = "$", "!", "?"
# The reply of a worker that finds nothing; the text that replaces a malformed report for the leader; the mark before an
# answer.
NOTHING, UNREADABLE, FINAL = "-", "#", "="


@dataclass(frozen=True)
class Symbols:
    """1 to `at_most` symbols, separated by spaces, or `-` for none.

    A space comes first, as before every word of a prompt, so that a word is the same token in prompt and reply.
    """

    at_most: int = 1

    def prompt(self) -> str:
        return f"Write {self._many}, or {NOTHING}."

    @property
    def _many(self) -> str:
        return "one letter" if self.at_most == 1 else f"1 to {self.at_most} letters"

    def render(self, value: Sequence[str]) -> str:
        text = "".join(f" {word}" for word in value) or f" {NOTHING}"
        return checked(text, list(value), self.parse(text))

    def parse(self, text: str) -> list[str] | Malformed:
        words = text.split()
        if words == [NOTHING]:
            return []
        if not 1 <= len(words) <= self.at_most or not all(len(word) == 1 and word in SYMBOLS for word in words):
            return Malformed(f"{text[:40]!r} is not {self._many} or {NOTHING!r}")
        return words


@dataclass(frozen=True)
class LookupMoves:
    """Symbols to look up, ` a b`, or the answer, ` = a`."""

    at_most: int  # symbols to look up; 0: only an answer is accepted

    def prompt(self) -> str:
        return f"Write 1 to {self.at_most} letters to look up, or {FINAL} and the answer."

    def render(self, value: Move) -> str:
        words = [FINAL, value.text] if isinstance(value, FinalAnswer) else value.subtasks
        text = "".join(f" {word}" for word in words)
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> Move | Malformed:
        words = text.split()
        final = words[:1] == [FINAL]
        symbols = Symbols(1 if final else self.at_most).parse(" ".join(words[final:]))
        if isinstance(symbols, Malformed):
            return symbols
        if not symbols:
            return Malformed("no letter")
        return FinalAnswer(symbols[0]) if final else Delegation(tuple(symbols))


@register_workflow("sharded_lookup")
class ShardedLookup(Delegating):
    """Starts a worker for each pair of a symbol to look up and a shard. Prompts have few words, for tiny models."""

    max_rounds: Count = 2
    max_workers: Count = 8

    async def run(self, task: Task, team: Team) -> Outcome:
        shards = shards_of(task.extra_info)
        if len(shards) > self.max_workers:
            value = f"mas.workflow.args.max_workers={self.max_workers} with a table of {len(shards)} shards"
            rule = "a symbol is looked up by a worker per shard"
            raise ConfigError(value, rule=rule, fix=f"set ++mas.workflow.args.max_workers={len(shards)} or more")
        played = await self.play(task, team)
        right = float(played.answer == task.ground_truth)
        return Outcome(answer=played.answer or "", reward=right, info={"acc": right, **played.info})

    def moves(self, task: Task, left: int) -> LookupMoves:
        return LookupMoves(self.max_workers // len(shards_of(task.extra_info)) if left else 0)

    def opening(self, task: Task) -> Prompt:
        return f" {LEADER} {task.question}"

    def prompts(self, task: Task, delegation: Delegation) -> list[Prompt]:
        shards = shards_of(task.extra_info)
        return [f" {shard} {WORKER} {symbol}" for symbol in delegation.subtasks for shard in shards]

    def report(self, reply: Reply) -> str:
        symbols = reply.parse(Symbols())
        return UNREADABLE if isinstance(symbols, Malformed) else symbols[0] if symbols else NOTHING

    def following(self, task: Task, move: Delegation | Malformed, reports: Sequence[str], left: int) -> Prompt:
        return " " + (" ".join(reports) or UNREADABLE)


@register_workflow("single_reader")
class SingleReader(Workflow):
    """Reads the table in one act, or shard by shard.

    `window=all`: one act reads the whole table and writes both steps. `window=shard`: each act reads one shard and the
    symbols found so far, and each shard is read at most twice.
    """

    agents = ("reader",)
    window: Literal["all", "shard"] = "shard"
    """Contents of a prompt: one shard, as for a worker, or the whole table."""

    async def run(self, task: Task, team: Team) -> Outcome:
        shards = shards_of(task.extra_info)
        windows = [" ".join(shards)] if self.window == "all" else list(shards) * HOPS
        notes = [task.question]
        acts = 0
        while len(notes) <= HOPS and acts < len(windows):
            reply = await team.reader.act(f" {windows[acts]} {READER} {' '.join(notes)}")
            acts += 1
            symbols = reply.parse(Symbols(HOPS + 1 - len(notes)))
            notes += [] if isinstance(symbols, Malformed) else symbols
        answer = notes[-1] if len(notes) > HOPS else ""
        right = float(answer == task.ground_truth)
        return Outcome(answer=answer, reward=right, info={"acc": right, "critical_path": acts})


# The share of the demonstrations without a finding that is kept. Most acts find nothing and are all alike, so a part
# of them is enough.
_NOTHING = 0.4


def lessons(shards: int, keys: int, *, noise: float, worker_noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly. `noise`: the share of wrong replies of the leader; `worker_noise`: the share of
    wrong replies of workers and readers."""
    rng = random.Random(f"lookup lessons {seed}")
    experts = LookupExperts(shards * keys, noise, worker_noise, rng)
    teams = [resolve(WorkflowSpec("sharded_lookup", args={"max_workers": shards}))]
    teams += [resolve(WorkflowSpec("single_reader", args={"window": window})) for window in ("shard", "all")]
    while True:
        table, asked = draw(shards, keys, rng)
        task = Task([{"role": "user", "content": asked}], extra_info={SHARDS: CUT.join(table.shards)})
        for team in teams:
            for lesson in demonstrate(team, task, experts):
                if lesson.agent == "leader" or findings(lesson.prompt) or rng.random() < _NOTHING:
                    # verl ends a turn of a conversation with a line break, whatever chat template is used.
                    yield replace(lesson, prompt=lesson.prompt.replace(TURN_END, f"{TURN_END}\n"))


class LookupExperts:
    """Plays every role. A wrong reply names random symbols among those that are possible."""

    def __init__(self, size: int, noise: float, worker_noise: float, rng: random.Random):
        self._symbols = SYMBOLS[:size]
        self._noise, self._worker_noise, self._rng = noise, worker_noise, rng

    def __call__(self, request: Request) -> str:
        if request.agent == "leader":
            return self._lead(request.messages)
        prompt = request.messages[-1]["content"]
        right = findings(prompt)
        if self._rng.random() >= self._worker_noise:
            return Symbols(HOPS).render(right)
        values = list(window(prompt)[0].values())
        return Symbols(HOPS).render([self._rng.choice(values) for _ in right or "-"])

    def _lead(self, messages: Sequence[Message]) -> str:
        """Look up the symbol that was reported last or, after the last step, answer with it. If reports contradict each
        other, draw one of their symbols."""
        reported = [word for word in messages[-1]["content"].split() if word in self._symbols]
        symbol = self._rng.choice(reported or self._symbols)
        if self._rng.random() < self._noise:
            symbol = self._rng.choice(self._symbols)
        delegations = sum(message["role"] == "assistant" for message in messages)
        move = Delegation((symbol,)) if delegations < HOPS else FinalAnswer(symbol)
        return LookupMoves(at_most=1).render(move)


def window(prompt: str) -> tuple[dict[str, str], str, list[str]]:
    """Parse the prompt of a worker or reader: the successors in its shards, its role, and the symbols after it."""
    shards, role, notes = prompt.partition(WORKER) if WORKER in prompt else prompt.partition(READER)
    return successors(shards), role, notes.split()


def findings(prompt: str) -> list[str]:
    """Return the right reply of a worker or reader: the successor of the last symbol in its prompt and, for a reader,
    the next successor, if the shards of the prompt have them."""
    following, role, notes = window(prompt)
    wanted = 1 if role == WORKER else HOPS + 1 - len(notes)
    right: list[str] = []
    while len(right) < wanted and (symbol := following.get([*notes, *right][-1])):
        right.append(symbol)
    return right


@DATA_SETS.register("lookup")
class Lookup(Generated):
    """Questions of two steps through a table in shards, for a team or one agent, and a control with shuffled shards."""

    warm_up = WarmUp(
        steps=1_000, batch=64, learning_rate=2e-3, lessons=15_000, texts=2_000, vocabulary=4_096, initial=0.1
    )
    rows = (2_000, 200)
    of_demonstrations = ("worker_noise",)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--shards", type=int, default=4)
        parser.add_argument("--keys", type=int, default=4, help="symbols per shard")
        parser.add_argument(
            "--worker-noise", type=float, metavar="SHARE", help="errors of workers and of single readers; as --noise"
        )

    def generate(self, options: argparse.Namespace) -> Prepared:
        check_noise(options.worker_noise)
        check_size(options.shards, options.keys)
        kind = {"shards": options.shards, "keys": options.keys, "seed": options.seed}
        train, test = tasks(options.train_rows, split=TRAIN, **kind), tasks(options.test_rows, split=TEST, **kind)
        return Prepared(train, test, [*test, *shuffled(test)], {"lookup": kind})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        noise, seed = options.noise, options.seed
        worker_noise = noise if options.worker_noise is None else options.worker_noise
        return lessons(options.shards, options.keys, noise=noise, worker_noise=worker_noise, seed=seed)
