"""The data sets `long_list` and `word_list`: lists, and models warmed up on demonstrations of all teams."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from benchmarks.evidence.long_list import CUT, LARGEST, LIST, MAY, Arms, Question
from benchmarks.evidence.word_list import COLOUR, WordArms
from verl_mas.cli import main
from verl_mas.config.hydra.recipe.smollm2.model import write_model
from verl_mas.config.values import load_dataclass
from verl_mas.data.dataset import DATA_SETS, Loader, Prepared
from verl_mas.data.items import with_next
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Request, Task, Workflow

WINDOWS_HELD_OUT, WINDOWS_SHUFFLED = (1, 4, 8), 4


class Expert:
    """A scripted agent that delegates at random, even if its part fits its window.

    In a share `noise` of its answers, it guesses.
    """

    def __init__(self, question: Question, noise: float, rng: random.Random):
        self._question, self._noise, self._rng = question, noise, rng

    def __call__(self, request: Request) -> str:
        *words, last = request.messages[-1]["content"].split()
        cut = CUT in words
        if last == MAY and len(request.messages) == 1 and self._rng.random() < (0.5 if cut else 0.2):
            return f" / {self._rng.choice((2, 4))}"
        read = words[: words.index(CUT)] if cut else words
        guesses = self._rng.random() < self._noise
        return f" = {self._question.guess(read, self._rng) if guesses else self._question.answer(read)}"


def lessons(question: Question, teams: Sequence[Workflow], noise: float, seed: int) -> Iterator[Lesson]:
    rng = random.Random(f"long list lessons {seed}")
    expert = Expert(question, noise, rng)
    while True:
        drawn = question.draw(rng.choice((2, 4, 6, *question.trained)), rng)
        task = Task([{"role": "user", "content": "list"}], question.answer(drawn), extra_info={LIST: " ".join(drawn)})
        for team in teams:
            for lesson in demonstrate(team, task, expert):
                # verl ends each turn of a conversation with a line break, even if the chat template does not.
                yield replace(lesson, prompt=lesson.prompt.replace("<|im_end|>", "<|im_end|>\n"))


@DATA_SETS.register("long_list")
class LongLists(Generated):
    """Lists of several lengths. As a control, the lists of four windows also come with the answers of other lists."""

    warm_up = WarmUp(steps=900, batch=64, lessons=6_000, texts=2_000, vocabulary=4_096, initial=0.1)
    rows = (2_000, 90)
    question = LARGEST
    arms: ClassVar[type[Arms]] = Arms

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add no options."""

    def generate(self, options: argparse.Namespace) -> Prepared:
        lengths = [windows * self.question.window for windows in WINDOWS_HELD_OUT]
        train = self.question.items(options.train_rows, self.question.trained, TRAIN, options.seed)
        test = self.question.items(options.test_rows, lengths, TEST, options.seed)
        source = f"list_{WINDOWS_SHUFFLED * self.question.window}"
        asked = [item for item in test if item.source == source]
        shuffled = [replace(item, truth=other.truth, source=f"{source}_shuffled") for item, other in with_next(asked)]
        return Prepared(train, test, [*test, *shuffled], {"long_list": {"lengths": lengths, "seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        learnt, scrolls = self.arms.teams["learnt"], self.arms.teams["scrolls"]
        one_level = load_dataclass(learnt, {"max_depth": 0}, "mas.workflow.args")
        return lessons(self.question, (learnt(), one_level, scrolls()), options.noise, options.seed)


@DATA_SETS.register("word_list")
class WordLists(LongLists):
    """Lists of words, as `long_list` otherwise. The model is SmolLM2, trained on demonstrations once for all seeds."""

    warm_up = WarmUp(steps=120, batch=16, lessons=2_000, learning_rate=1e-4)
    question, arms = COLOUR, WordArms

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        pretrained = options.out / "smollm2"
        write_model(pretrained)
        options.warm_up = [*options.warm_up, f"start={pretrained}", "seed=0"]
        return super().prepare(options, load)

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return super().lessons(argparse.Namespace(**{**vars(options), "seed": 0}))


if __name__ == "__main__":
    raise SystemExit(main(["data", "long_list", *sys.argv[1:]]))
