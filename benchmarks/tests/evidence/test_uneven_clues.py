from __future__ import annotations

import pytest
import torch

from verl_mas.advantage.record import AdvantageInput
from verl_mas.config.hydra.recipe.split_clues.clues import items
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run

[ITEM] = items(1)
CLUES = ITEM.row(0, "train")


@pytest.fixture
def play(evidence):
    def run_once(validate=False, **args):
        task = Task(CLUES["prompt"], ground_truth=ITEM.truth, extra_info=CLUES["extra_info"], validate=validate)
        llm = ScriptedLLM({"sender": "abc", "receiver": ITEM.truth})
        return run(evidence("uneven_clues").UnevenClues(text="compact", **args), task, llm), llm

    return run_once


def test_between_the_calls_the_receiver_reads_what_the_clues_leave(play):
    session, llm = play(called=0.0, otherwise="clues")
    assert [reply.agent for reply in session.replies] == ["receiver"] and session.team_reward == 1.0
    own, message = llm.requests[0].messages[-1]["content"].rstrip("?").split("|")
    assert [sorted(own), sorted(message)] == [sorted(ITEM.extra["parts"][1]), sorted(ITEM.extra["parts"][0])]


def test_random_letters_say_nothing(play):
    session, llm = play(called=0.0)
    message = llm.requests[0].messages[-1]["content"].rstrip("?").split("|")[1]
    assert [reply.agent for reply in session.replies] == ["receiver"] and len(message) == len(set(message)) == 3


@pytest.mark.parametrize("args", [{"called": 1.0}, {"called": 0.0, "validate": True}])
def test_it_is_called_otherwise_and_always_in_a_validation(play, args):
    session, _ = play(offset=1.5, **args)
    assert [(reply.agent, reply.reward) for reply in session.replies] == [("sender", 1.5), ("receiver", None)]


def test_a_scale_moves_no_mean(evidence):
    batch = AdvantageInput(torch.tensor([0.0, 1.0, 1.0]), ["t"] * 3, [0, 1, 1], ["sender", "sender", "receiver"])
    scaled = evidence("uneven_clues").scaled(batch).scores
    assert torch.equal(scaled, torch.tensor([-4.5, 5.5, 1.0]))
