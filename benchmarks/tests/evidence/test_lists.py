"""With every team, an expert without errors finds the answer in a list; if it reads only one window, it does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from scripted_sessions import play

from verl_mas.workflow import Task

QUESTIONS = [("long_list", "LARGEST", "Arms"), ("word_list", "COLOUR", "WordArms")]


def task(lists, question, windows, rng):
    drawn = question.draw(windows * question.window, rng)
    return Task([], question.answer(drawn), extra_info={lists.LIST: " ".join(drawn)}, validate=True)


def reads(evidence, question, rng):
    """Return the expert of the demonstrations. Here it makes no errors and never delegates."""
    lists, expert = evidence("long_list"), evidence("list_data").Expert(question, 0.0, rng)

    def reply(request, _):
        *words, last = request.messages[-1]["content"].split()
        shown = " ".join([*words, lists.MUST if last == lists.MAY else last])
        return expert(replace(request, messages=[{"role": "user", "content": shown}]))

    return reply


@pytest.mark.parametrize(("module", "question", "arms"), QUESTIONS)
def test_every_arm_finds_the_answer(evidence, module, question, arms):
    lists, own = evidence("long_list"), evidence(module)
    asked, rng = getattr(own, question), random.Random(1)

    def divides(request, number):
        *words, last = request.messages[-1]["content"].split()
        return " / 4" if lists.CUT in words and last == lists.MAY else reads(evidence, asked, rng)(request, number)

    for windows in (1, 2, 4):
        session, _ = play(getattr(own, arms)(), divides, task(lists, asked, windows, rng))
        assert [session.info[arm] for arm in ("learnt", "fixed", "scrolls")] == [1.0, 1.0, 1.0]
        assert session.info["learnt_depth"] == (windows > 1)


@pytest.mark.parametrize(("module", "question", "arms"), QUESTIONS)
def test_an_agent_that_never_delegates_knows_one_window(evidence, module, question, arms):
    lists, own = evidence("long_list"), evidence(module)
    asked, rng = getattr(own, question), random.Random(2)
    learnt, reply = getattr(own, arms).teams["learnt"], reads(evidence, asked, rng)
    right = [play(learnt(), reply, task(lists, asked, 4, rng))[0].info["acc"] for _ in range(200)]
    assert sum(right) / 200 == pytest.approx(0.25, abs=0.08)
