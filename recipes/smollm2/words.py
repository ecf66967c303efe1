"""Secret words in plain English: a scout knows the word that a judge has to say, and writes a message to the judge."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias

from verl_mas.data.items import Item, sampled, with_next
from verl_mas.errors import DataError
from verl_mas.util.splits import TRAIN, split_of
from verl_mas.workflow import Message, Outcome, Task, Team, Workflow, register_workflow
from verl_mas.workflow.client import DatasetFields

Kind: TypeAlias = Literal["word", "pair", "asked"]
KINDS: tuple[Kind, ...] = ("word", "pair", "asked")
SOURCE, SHUFFLED = "secret_words", "secret_words_shuffled"
COLOURS = ("red", "blue", "green", "yellow", "purple", "white", "black", "brown", "pink", "orange", "grey", "gold")
# Nouns that everybody knows, each a single word.
THINGS = tuple(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split())
ASKED_OF = 4  # things whose colours the scout knows; a short reply can name one or two


@dataclass(frozen=True)
class Secret:
    """A task: the texts that the scout and the judge read, and the right words."""

    kind: Kind
    known: str
    own: str
    answer: str


def secrets(kind: Kind, split: str, count: int | None, seed: int = 0) -> list[Secret]:
    """Sample different tasks of a split, in random order; without `count`, all of them. Different splits have no common
    words (kind `word`), no common pairs (kind `pair`), or no common pairs of a requested thing and its colour (kind
    `asked`)."""
    rng = random.Random(f"secret words {kind} {split} {seed}")
    names = [(thing,) for thing in THINGS] if kind == "word" else list(product(COLOURS, THINGS))
    chosen = [name for name in names if split_of(" ".join(name)) == split]
    return [_secret(kind, name, rng) for name in sampled(chosen, count, rng, kind=f"tasks of kind {kind}", split=split)]


def _secret(kind: Kind, name: Sequence[str], rng: random.Random) -> Secret:
    if kind == "word":
        return Secret(kind, f"Secret word: {name[0]}", "", name[0])
    colour, thing = name
    if kind == "pair":
        return Secret(kind, f"Secret colour: {colour}", f"Secret thing: {thing}", f"{colour} {thing}")
    others = zip(
        rng.sample([one for one in COLOURS if one != colour], ASKED_OF - 1),
        rng.sample([one for one in THINGS if one != thing], ASKED_OF - 1),
        strict=True,
    )
    lines = [f"The {thing} is {colour}." for colour, thing in [(colour, thing), *others]]
    rng.shuffle(lines)
    return Secret(kind, " ".join(lines), f"Thing: {thing}", colour)


def items(kind: Kind, count: int | None, *, split: str = TRAIN, seed: int = 0) -> list[Item]:
    return [Item(f"{s.known} {s.own}", s.answer, SOURCE, extra=vars(s)) for s in secrets(kind, split, count, seed)]


def shuffled(tasks: Sequence[Item]) -> list[Item]:
    """Make the tasks of the control experiment, in which the scout has the knowledge of the next task.

    The scout's messages have the same distribution as in the real tasks, but they do not help the judge.
    """
    return [
        replace(task, source=SHUFFLED, extra={**task.extra, "known": other.extra["known"]})
        for task, other in with_next(tasks)
    ]


def secret_of(extra_info: DatasetFields) -> Secret:
    """Read the task of a dataset row."""
    kind = next((kind for kind in KINDS if kind == extra_info.get("kind")), None)
    known, own, answer = (extra_info.get(name) for name in ("known", "own", "answer"))
    if not (kind and isinstance(known, str) and isinstance(own, str) and isinstance(answer, str)):
        value = f"a row with extra_info {dict(extra_info)!r:.200}"
        rule = "secret_words needs rows with kind, known, own and answer"
        raise DataError(value, rule=rule, fix="create them with `verl-mas data smollm2 --out <folder>`")
    return Secret(kind, known, own, answer)


@register_workflow("secret_words")
class SecretWords(Workflow):
    """A scout writes one message to a judge, which answers. In tasks of kind `asked`, the judge asks first."""

    agents = ("scout", "judge")

    control: Literal["none", "all", "own"] = "none"
    """none: the team acts. all: the judge acts alone and reads the scout's knowledge (the ceiling). own: the judge acts
    alone, without the scout's knowledge (the floor)."""

    async def run(self, task: Task, team: Team) -> Outcome:
        secret = secret_of(task.extra_info)
        note = {"all": secret.known, "own": ""}.get(self.control)
        if note is None:
            question = (await team.judge.act(asking(secret))).text if secret.kind == "asked" else ""
            note = (await team.scout.act(telling(secret, question))).text
        answer = await team.judge.act(judging(secret, note))
        score, right = graded(answer.text, secret.answer)
        return Outcome(answer=answer, reward=score, info={"acc": right})


def graded(reply: str, answer: str) -> tuple[float, float]:
    """Grade a reply: the F1 score of its words, which punishes superfluous words, and whether it is exactly the answer.

    The first word of the answer is the part that only the scout knows. A reply without this word gets the F1 score 0,
    even if it contains the judge's own part.
    """
    words, wanted = reply.lower().replace(".", " ").split(), answer.split()
    found = (Counter(words) & Counter(wanted)).total() * (wanted[0] in words)
    return 2 * found / (len(words) + len(wanted)), float(words == wanted)


# The constant text of an agent's prompts comes first, so that engines with a prefix cache compute it only once.
_TELL = {
    "word": "You tell a friend the secret word in one short sentence.",
    "pair": "You tell a friend the secret colour in one short sentence.",
    "asked": "You answer your friend's question in one short sentence.",
}
_JUDGE = {
    "word": "Read your friend's message and answer with the secret word.",
    "pair": "Read your friend's message and answer with the secret colour and the secret thing.",
    "asked": "Read your friend's message and answer with the colour.",
}
_ASK = "You ask a friend for the colour of a thing in one short question."
# Example turns of the judge. Without an example that names both words, a small model names one of them, or neither.
_SHOWN = {
    "word": (),
    "pair": (("Secret thing: chair\nMessage: The secret colour is blue.", "blue chair"),),
    "asked": (("Thing: chair\nMessage: The chair is blue.", "blue"),),
}


def asking(secret: Secret) -> list[Message]:
    return _prompt(_ASK, secret.own, examples=(("Thing: chair", "What colour is the chair?"),))


def telling(secret: Secret, question: str) -> list[Message]:
    return _prompt(_TELL[secret.kind], secret.known, f"Question: {question}" if secret.kind == "asked" else "")


def judging(secret: Secret, note: str) -> list[Message]:
    return _prompt(_JUDGE[secret.kind], secret.own, f"Message: {note}", examples=_SHOWN[secret.kind])


def _prompt(role: str, *lines: str, examples: Sequence[tuple[str, str]] = ()) -> list[Message]:
    """Make a prompt. `examples`: earlier turns, each with its reply."""
    turns = [pair for turn in examples for pair in zip(("user", "assistant"), turn, strict=True)]
    last = "\n".join(line for line in lines if line)
    return [{"role": name, "content": text} for name, text in (("system", role), *turns, ("user", last))]
