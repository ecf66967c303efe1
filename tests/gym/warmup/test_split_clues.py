from __future__ import annotations

from itertools import islice

import pytest

from verl_mas.gym.split_clues import SplitClues, clues, lessons
from verl_mas.util.splits import TEST


def shown(noise: float, count: int = 4_000, **arguments):
    return list(islice(lessons(SplitClues(text="compact", **arguments), noise=noise), count))


def left(prompt: str) -> set[str]:
    own, *messages = prompt[:-1].split("|")
    return set(own).intersection(*messages)


def test_without_noise_messages_are_the_clues_and_answers_what_all_clues_leave():
    for lesson in shown(0.0, 400, parts=3, rounds=2):
        if lesson.prompt.endswith("?"):
            assert {lesson.reply} == left(lesson.prompt)
        else:
            assert lesson.reply == lesson.prompt[:3]


def test_noise_is_of_whole_messages_and_of_answers_among_the_own_letters():
    found = shown(0.6)
    sent = [lesson for lesson in found if lesson.agent == "sender"]
    assert all(len(set(lesson.reply)) == 3 for lesson in sent)
    right = sum(lesson.reply == lesson.prompt[:3] for lesson in sent) / len(sent)
    assert right == pytest.approx(0.4, abs=0.03)
    answers = [lesson for lesson in found if lesson.agent == "receiver"]
    assert all(lesson.reply in lesson.prompt[:3] for lesson in answers)
    # A random letter is the one that was there in one case of eight.
    known = [lesson for lesson in answers if len(left(lesson.prompt)) == 1]
    assert sum({lesson.reply} == left(lesson.prompt) for lesson in known) / len(known) > 0.55


def test_lessons_are_of_training_tasks():
    held_out = {frozenset(task.parts[0]) | frozenset(task.parts[1]) for task in clues(TEST)}
    for sent, received in zip(*[iter(shown(0.0, 400))] * 2, strict=True):
        assert frozenset(sent.prompt[:3]) | frozenset(received.prompt[:3]) not in held_out
