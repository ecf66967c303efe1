from __future__ import annotations

import pytest

from verl_mas.config.hydra.recipe.split_clues.clues import items
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run

ITEMS = items(60)


def ratings(evidence, right, **args):
    """Return the rating of a sender's message on each task. If `right`, the message names the letters that the sender's
    clues leave, otherwise it names other letters."""
    found = []
    for item in ITEMS:
        row = item.row(0, "train")
        part = item.extra["parts"][0]
        message = part if right else "".join(sorted(set("abcdefgh") - set(part))[:3])
        task = Task(row["prompt"], ground_truth=item.truth, extra_info=row["extra_info"])
        llm = ScriptedLLM({"sender": message, "receiver": item.truth})
        session = run(evidence("rated_clues").RatedClues(text="compact", **args), task, llm)
        assert session.replies[1].reward is None
        found.append(session.replies[0].reward)
    return found


@pytest.mark.parametrize("right", [True, False])
def test_a_rule_without_errors_rates_what_a_message_names(evidence, right):
    assert set(ratings(evidence, right, errs=0.0)) == {float(right)}


def test_it_errs_as_often_as_it_is_given_and_alike_each_time(evidence):
    found = ratings(evidence, right=True, errs=0.3)
    assert 0.1 < 1 - sum(found) / len(found) < 0.5 and found == ratings(evidence, right=True, errs=0.3)
