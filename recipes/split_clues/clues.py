"""Split clues: one of eight letters is right. Each agent's clues rule out some letters, and the clues of all agents
together rule out every wrong letter."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from verl_mas.cli._arguments import check_share
from verl_mas.config.hydra.recipe.split_clues.states import Letters, States
from verl_mas.config.values import Count, Range
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item, sampled, with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, tiny
from verl_mas.util.splits import TEST, TRAIN, split_of
from verl_mas.workflow import Malformed, Outcome, Reply, Task, Team, instances, register_workflow
from verl_mas.workflow.client import DatasetFields

LETTERS = "abcdefgh"
# Number of parts -> number of letters that each part alone rules out, so that every part is needed.
RULED_OUT = {2: 2, 3: 1, 4: 1}
SOURCE, SHUFFLED = "split_clues", "split_clues_shuffled"
PARTS, HINT = "parts", "hint"
Decoys = float | None  # the share of hints that name a wrong letter; None: there are no hints


@dataclass(frozen=True)
class Clues:
    """A task: the right letter, and for each agent the letters that its clues leave."""

    answer: str
    parts: tuple[str, ...]
    hint: str = ""  # a letter that all agents read

    @property
    def question(self) -> str:
        return "|".join(self.parts) + (f"+{self.hint}" if self.hint else "") + "?"


def clues(split: str, parts: int = 2) -> Iterator[Clues]:
    """Yield all tasks of a split. The split depends only on the set of letters that are possible for at least one part,
    and every letter of this set is the right letter in equally many tasks. So the split does not reveal the answer."""
    if parts not in RULED_OUT:
        raise ConfigError(f"{parts} parts", rule="a task has 2, 3 or 4 parts", fix="use 2")
    alone = RULED_OUT[parts]
    for letters in itertools.combinations(LETTERS, 1 + parts * alone):
        if split_of("".join(letters)) != split:
            continue
        for answer in letters:
            wrong = [letter for letter in letters if letter != answer]
            yield from (Clues(answer, _left(answer, groups)) for groups in _groups(wrong, alone))


def _groups(letters: Sequence[str], size: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Divide the letters into ordered groups of `size`, in every way."""
    if not letters:
        yield ()
    for group in itertools.combinations(letters, size):
        rest = [letter for letter in letters if letter not in group]
        yield from ((group, *others) for others in _groups(rest, size))


def _left(answer: str, groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the letters that each part leaves possible, where part k rules out group k."""
    others = [itertools.chain(*groups[:k], *groups[k + 1 :]) for k in range(len(groups))]
    return tuple("".join(sorted((answer, *wrong))) for wrong in others)


def hints(task: Clues, decoys: Decoys) -> dict[str, float]:
    """Return the possible hints of a task with their probabilities: the right letter, or a wrong letter that some part
    leaves possible."""
    if decoys is None:
        return {"": 1.0}
    wrong = sorted(set("".join(task.parts)) - {task.answer})
    return {task.answer: 1 - decoys} | {letter: decoys / len(wrong) for letter in wrong}


def with_hint(task: Clues, decoys: Decoys, rng: random.Random) -> Clues:
    chances = hints(task, decoys)
    return replace(task, hint=rng.choices(list(chances), list(chances.values()))[0])


def items(count: int | None, *, split: str = TRAIN, seed: int = 0, parts: int = 2, decoys: Decoys = None) -> list[Item]:
    """Sample different tasks of a split, in random order; all of them without a `count`."""
    every = list(clues(split, parts))
    rng = random.Random(f"{split} {seed}")
    chosen = sampled(every, count, rng, kind=f"tasks of {parts} parts", split=split)
    drawn = [with_hint(task, decoys, rng) for task in chosen]
    return [
        Item(task.question, task.answer, SOURCE, extra={PARTS: list(task.parts), HINT: task.hint}) for task in drawn
    ]


def shuffled(tasks: Sequence[Item]) -> list[Item]:
    """The control: in each task, all agents except the last one have the clues of the next task. Messages keep their
    distribution, but say nothing about the answer."""

    def mixed(own: DatasetFields, other: DatasetFields) -> DatasetFields:
        return {**own, PARTS: [*other[PARTS][:-1], own[PARTS][-1]]}

    return [replace(task, source=SHUFFLED, extra=mixed(task.extra, other.extra)) for task, other in with_next(tasks)]


def clues_of(extra_info: DatasetFields, answer: object, parts: int) -> Clues:
    """Read the task of a dataset row."""
    given = extra_info.get(PARTS)
    if given is None or len(given) != parts or answer not in list(LETTERS):
        value = f"a row with extra_info.{PARTS}={given!r:.200} and the ground truth {answer!r:.80}"
        rule = f"split_clues with mas.workflow.args.parts={parts} needs rows with {parts} parts and a right letter"
        fix = f"create them with `verl-mas data split_clues --out <folder> --parts {parts}`"
        raise DataError(value, rule=rule, fix=fix)
    return Clues(str(answer), tuple(map(str, given)), str(extra_info.get(HINT) or ""))


SPEAKERS, ANSWER = "ABCD", "?"  # last character of a compact prompt: the writer of a message, or ANSWER


@dataclass(frozen=True)
class Talk:
    """A conversation whose last act answers."""

    answer: str
    parts: tuple[str, ...]  # letters that the clues of each agent leave, in speaking order
    hint: str
    acts: int  # number of acts in total
    read: tuple[str, ...] = ()  # with `control="all"`: parts of the other agents, which the receiver reads at the start
    written: tuple[str, ...] = ()

    @property
    def last(self) -> bool:
        """Whether the next act answers."""
        return len(self.written) == self.acts - 1

    @property
    def speaker(self) -> int:
        return len(self.written) % len(self.parts)

    @property
    def part(self) -> str:
        """The letters that the clues of the next speaker leave."""
        return self.parts[self.speaker]

    def after(self, letters: str | Malformed) -> Talk:
        """Return the talk after a message. The other agents read an unreadable message as an empty message."""
        return replace(self, written=(*self.written, "" if isinstance(letters, Malformed) else letters))


@register_workflow("split_clues")
class SplitClues(States[Talk]):
    """Agents write letters in turn, and each reads all earlier messages. The last act answers. Only the answer is
    rewarded, so the value of a message depends on the acts after it."""

    parts: Annotated[int, Range(2, 4)] = 2
    """The number of agents that have clues: `sender` and `receiver`, or `sender_0`, `sender_1`, ... and `receiver`."""

    rounds: Count = 1
    """Acts of each agent. From the second round on, senders have read the messages of the others."""

    @property
    def agents(self) -> Sequence[str]:
        senders = self.parts - 1
        return (*(("sender",) if senders == 1 else instances("sender", senders)), "receiver")

    async def run(self, task: Task, team: Team) -> Outcome:
        # The order of clues has no meaning, and differs from session to session.
        order = random.Random(f"{task.extra_info.get('index')}/{task.step}/{task.session}")
        return await self.play(self.opening(clues_of(task.extra_info, task.ground_truth, self.parts), order), team)

    def opening(self, task: Clues, order: random.Random) -> Talk:
        parts = tuple("".join(order.sample(part, len(part))) for part in task.parts)
        if self.control == "none":
            return Talk(task.answer, parts, task.hint, self.rounds * self.parts)
        return Talk(task.answer, parts[-1:], task.hint, 1, read=parts[:-1] if self.control == "all" else ())

    def over(self, state: Talk) -> bool:
        return len(state.written) == state.acts

    def actor(self, state: Talk) -> str:
        return self.agents[state.speaker] if self.control == "none" else "receiver"

    def after(self, reply: Reply, state: Talk) -> Talk:
        letters = reply.parse(self.codec(state))
        return state.after(letters)

    def unsaid(self, state: Talk) -> Talk | None:
        return None if state.last else state.after("")

    def outcome(self, state: Talk) -> Outcome:
        right = float(state.written[-1] == state.answer)
        return Outcome(answer=state.written[-1], reward=right, info={"acc": right, "named": named(state)})

    def codec(self, state: Talk) -> Letters:
        tag = "answer" if state.last else "message"
        return Letters(LETTERS, 1 if state.last else len(state.part), None if self.text == "compact" else tag)

    def prompt(self, state: Talk) -> str:
        if self.text == "compact":
            hint = f"+{state.hint}" if state.hint else ""
            messages = "".join(f"|{message}" for message in state.read + state.written)
            return f"{state.part}{hint}{messages}{ANSWER if state.last else SPEAKERS[state.speaker]}"
        return "\n\n".join([*_scene(state), self.codec(state).prompt()])


def named(talk: Talk) -> float:
    """Return the share of the senders' letters that their messages name."""
    written = [(talk.parts[turn % len(talk.parts)], message) for turn, message in enumerate(talk.written[:-1])]
    shares = [len(set(part) & set(message)) / len(part) for part, message in written]
    return sum(shares) / len(shares) if shares else 0.0


def _scene(talk: Talk) -> list[str]:
    lines = [
        f"One of the letters {', '.join(LETTERS)} is right. Each member of a team has different clues; only the right "
        "letter is left by the clues of all.",
        f"Your clues leave {', '.join(talk.part)}.",
    ]
    if talk.hint:
        lines.append(f"Everybody expects {talk.hint}, which may be wrong.")
    if messages := talk.read + talk.written:
        listed = "\n".join(f"- {', '.join(message) or 'nothing that can be read'}" for message in messages)
        lines.append(f"Messages of the team so far, oldest first:\n{listed}")
    lines.append("Which letter is right?" if talk.last else "Write to the others what helps them to find it.")
    return lines


# Factors of `noise`: for the share of guessed answers, and for the share of random letters in messages that are read.
_ANSWERS, _LETTERS = 5 / 6, 1 / 2


def lessons(workflow: SplitClues, *, noise: float, decoys: Decoys = None, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly, on training tasks only, with the workflow's prompts.

    With probability `noise`, all letters of a message are replaced by different random letters. If only single letters
    were replaced, messages would repeat letters, a habit that reinforcement learning does not unlearn.
    """
    rng = random.Random(f"lessons {seed}")
    every = list(clues(TRAIN, workflow.parts))
    while True:
        task = with_hint(rng.choice(every), decoys, rng)
        talk = workflow.opening(task, rng)
        while not workflow.over(talk):
            written = [
                "".join(rng.choice(LETTERS) if rng.random() < noise * _LETTERS else letter for letter in message)
                for message in talk.written
            ]
            misread = replace(talk, written=tuple(written))
            if talk.last:
                reply = rng.choice(talk.part) if rng.random() < noise * _ANSWERS else task.answer
            else:
                reply = "".join(rng.sample(LETTERS, len(talk.part))) if rng.random() < noise else talk.part
            yield Lesson(workflow.actor(talk), workflow.prompt(misread), workflow.codec(misread).render(reply))
            # Later prompts contain the correct message (with noise), even if this reply has random letters, so that the
            # model can learn from messages how to answer.
            talk = talk.after(talk.part)


@DATA_SETS.register("split_clues")
class SplitCluesData(Generated):
    """Clues that are split between agents. Every test task occurs twice, once with the messages of another task."""

    # A vocabulary without merges: every letter is one token, wherever it is.
    warm_up = WarmUp(
        hidden=32, initial=0.1, steps=1_000, batch=96, learning_rate=3e-3, lessons=60_000, texts=100, vocabulary=259
    )
    rows = (None, 140)
    of_demonstrations = ("rounds",)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--parts", type=int, default=2, help="agents that have clues: 2, 3 or 4")
        parser.add_argument("--rounds", type=int, default=1, help="rounds of the demonstrations")
        parser.add_argument(
            "--decoys", type=float, metavar="SHARE", help="all agents also read a hint, wrong in this share of tasks"
        )

    def generate(self, options: argparse.Namespace) -> Prepared:
        check_share("--decoys", options.decoys)
        kind = {"parts": options.parts, "decoys": options.decoys}
        train = items(options.train_rows, split=TRAIN, seed=options.seed, **kind)
        # The test rows are the same for every seed.
        held_out = items(options.test_rows, split=TEST, **kind)
        test = [*held_out, *shuffled(held_out)]
        return Prepared(train, test, test, {"split_clues": {**kind, "seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        workflow = tiny(SplitClues, parts=options.parts, rounds=options.rounds)
        return lessons(workflow, noise=options.noise, decoys=options.decoys, seed=options.seed)
