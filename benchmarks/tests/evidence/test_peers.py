"""Tests that the starts of the peers have the errors of their names, and that each control rewards its own target."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from scripted_sessions import box, play

from verl_mas.config.hydra.recipe.peers.team import Peers
from verl_mas.gym.warmup import bare
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
    # Both peers answer this chain right. The second reply of a peer is its answer to the other chain.
    assert rewards(shuffled, [box(5), box(9)], [box(5), box(5)]) == [1.0, 0.0]
    assert rewards(shuffled, [box(5), "unreadable"], ["unreadable", box(5)]) == [1.0, 0.0]


def test_the_ceiling_rewards_right_answers(evidence):
    assert rewards(evidence("peer_rewards").LabelledPeers(score="em"), box(5), box(6)) == [1.0, 0.0]


def test_a_lone_model_is_rewarded_for_equalling_its_own_other_answers(evidence):
    alone = evidence("peer_rewards").LonePeers(score="em", answers=3)
    assert rewards(alone, [box(5), box(5), box(6)], box(6)) == [0.5, 0.5, 0.0, 1.0, 1.0, 1.0]


def test_a_reviewed_answer_is_rewarded_for_an_approval_and_validation_measures_the_reviews(evidence):
    workflow = evidence("peer_rewards").ReviewPeers(score="em")
    assert rewards(workflow, [box(6), "<verify>reject</verify>"], [box(5), "<verify>approve</verify>"]) == [1.0, 0.0]
    answers = {
        "peer_0": [box(6)] * 2 + ["<verify>reject</verify>"],
        "peer_1": [box(5)] * 2 + ["<verify>reject</verify>"],
    }
    session, _ = play(workflow, answers, replace(CHAIN, validate=True))
    assert (session.info["acc"], session.info["reviews"]) == (0.5, 0.5)


def test_lessons_in_reviews_have_the_prompts_of_reviews(evidence):
    starts = evidence("peer_starts")
    options = Namespace(seed=0, terms=3, largest=9, noise=0.0, models=["low"], reviews=True)
    answer, review = islice(starts.lessons(options, "low"), 2)
    chain = answer.prompt.partition("=")[0] + "="
    proposal = review.prompt.partition(":\n")[2].partition("\n")[0]
    workflow = Peers(score="em", teacher="review")
    session, _ = play(workflow, lambda request, _: proposal, Task([{"role": "user", "content": chain}]))
    assert bare(next(reply.messages for reply in session.replies if reply.probe)) == review.prompt
    approves = proposal.rpartition("{")[2] == f"{review.reply.rpartition('=')[2].split()[0]}}}"
    assert review.reply.endswith("<verify>approve</verify>" if approves else "<verify>reject</verify>")


def test_the_arms_of_a_run_are_pairs_that_know_nothing_of_each_other(evidence):
    arms = evidence("peer_rewards")
    session, _ = play(arms.PeerArms(answers=2), lambda request, _: box(5 + ("alike" in request.agent)), CHAIN)
    earned = {reply.agent: reply.reward for reply in session.replies if not reply.probe}
    assert set(earned) == {f"{pair}_peer_{number}" for pair in arms.PAIRS for number in range(2)}
    # A review without a verdict counts as a rejection.
    assert {agent for agent, reward in earned.items() if reward != 1.0} == {"review_peer_0", "review_peer_1"}
    assert session.info["alike_agreement"] == 1.0
    session, _ = play(
        arms.PeerArms(), lambda request, _: box(5 + ("alike" in request.agent)), replace(CHAIN, validate=True)
    )
    assert (session.info["acc"], session.info["alike_acc"], session.info["labels_acc"]) == (1.0, 0.0, 1.0)
