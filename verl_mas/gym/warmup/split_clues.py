"""Demonstrations on split clues: messages and answers with errors at set rates."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym.split_clues import LETTERS, Decoys, clues, with_hint
from verl_mas.gym.teams.split_clues import SplitClues, Talk
from verl_mas.gym.warmup.demonstrations import Lesson
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.util.splits import TRAIN
from verl_mas.workflow.base import resolve

# A vocabulary without merges: every letter is one token, wherever it is.
TAUGHT = WarmUp(
    hidden=32, initial=0.1, steps=1_000, batch=96, learning_rate=3e-3, lessons=60_000, texts=100, vocabulary=259
)
# Shares of `noise`: of the answers that are any letter left, and of the letters of messages that are random.
_ANSWERS, _LETTERS = 5 / 6, 1 / 2


def tiny_workflow(parts: int, rounds: int) -> SplitClues:
    """The workflow with prompts for a tiny model."""
    args = {"text": "compact", "parts": parts, "rounds": rounds}
    return cast(SplitClues, resolve(WorkflowSpec("split_clues", args=args)))


def lessons(workflow: SplitClues, *, noise: float, decoys: Decoys = None, seed: int = 0) -> Iterator[Lesson]:
    """Endless; only training tasks, with the workflow's prompts.

    With probability `noise` a message is wrong as a whole: that many different random letters. Messages with single
    wrong letters would repeat letters, a habit that reinforcement learning does not lose.
    """
    rng = random.Random(f"lessons {seed}")
    found = list(clues(TRAIN, workflow.parts))
    while True:
        task = with_hint(rng.choice(found), decoys, rng)
        talk = workflow.opening(task, rng)
        while not workflow.over(talk):
            misread = replace(talk, written=tuple(_misread(message, noise, rng) for message in talk.written))
            reply = _answer(task.answer, misread, noise, rng) if talk.last else _message(misread, noise, rng)
            codec = workflow.codec(misread)
            yield Lesson(workflow.actor(talk), workflow.prompt(misread), codec.render(reply))
            # Right, so that an answer can be learned from it.
            talk = talk.after(talk.part)


def _message(talk: Talk, noise: float, rng: random.Random) -> str:
    return "".join(rng.sample(LETTERS, len(talk.part))) if rng.random() < noise else talk.part


def _answer(answer: str, talk: Talk, noise: float, rng: random.Random) -> str:
    return rng.choice(talk.part) if rng.random() < noise * _ANSWERS else answer


def _misread(message: str, noise: float, rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) if rng.random() < noise * _LETTERS else letter for letter in message)
