"""The starts of peers have the errors that they are named for, and the controls reward what they say."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from scripted_sessions import box, play

from verl_mas.workflow import Task

CHAIN = Task([{"role": "user", "content": "3+4-2="}], ground_truth="5", data_source="arithmetic")


def rewards(workflow, first, second):
    session, _ = play(workflow, {"peer_0": first, "peer_1": second}, CHAIN)
    return [reply.reward for reply in session.replies if not reply.probe]


def test_a_blind_model_mostly_writes_the_result_plus_one(evidence):
    starts, rng = evidence("peer_starts"), random.Random(0)
    for blind, right, plus_one in (("low", 0.41, 0.51), ("high", 0.73, 0.03), ("all", 0.26, 0.66)):
        shown = Counter(starts.reply("3+4-2=", blind, 0.3, rng).rpartition("{")[2] for _ in range(4000))
        assert shown["5}"] / 4000 == pytest.approx(right, abs=0.03)
        assert shown["6}"] / 4000 == pytest.approx(plus_one, abs=0.03)


def test_the_control_rewards_answers_to_another_chain(evidence):
    shuffled = evidence("peer_rewards").ShuffledPeers(score="em")
    # Both are right here; what a peer answers to the other chain is its second reply.
    assert rewards(shuffled, [box(5), box(9)], [box(5), box(5)]) == [1.0, 0.0]
    assert rewards(shuffled, [box(5), "unreadable"], ["unreadable", box(5)]) == [1.0, 0.0]


def test_the_ceiling_rewards_right_answers(evidence):
    assert rewards(evidence("peer_rewards").LabelledPeers(score="em"), box(5), box(6)) == [1.0, 0.0]


def test_the_arms_of_a_run_are_pairs_that_know_nothing_of_each_other(evidence):
    arms = evidence("peer_rewards")
    session, _ = play(arms.PeerArms(answers=2), lambda request, _: box(5 + ("alike" in request.agent)), CHAIN)
    earned = {reply.agent: reply.reward for reply in session.replies if not reply.probe}
    assert set(earned) == {f"{pair}_peer_{number}" for pair in arms.PAIRS for number in range(2)}
    assert set(earned.values()) == {1.0} and session.info["alike_agreement"] == 1.0
    session, _ = play(
        arms.PeerArms(), lambda request, _: box(5 + ("alike" in request.agent)), replace(CHAIN, validate=True)
    )
    assert (session.info["acc"], session.info["alike_acc"], session.info["labels_acc"]) == (1.0, 0.0, 1.0)
