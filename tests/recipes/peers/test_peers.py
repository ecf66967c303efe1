"""Peers that reward each other: formulas against direct counts, and a ground truth that training does not read."""

from dataclasses import replace
from fractions import Fraction

import pytest

pytest.importorskip("math_verify")

from hypothesis import given
from hypothesis import strategies as st
from scripted_sessions import APPROVE, HALF, REJECT, RIGHT, WRONG, acts_of, box, play, prompts_of

from verl_mas.config.hydra.recipe.peers.team import Peers

UNLABELLED = replace(HALF, ground_truth=None)
SILENT = "I do not know"


def own(session):
    return [reply.reward for reply in session.replies if not reply.probe]


@given(st.lists(st.lists(st.sampled_from([None, 1, 2, 3]), min_size=2, max_size=2), min_size=2, max_size=4))
def test_each_answer_earns_by_the_answers_of_the_others(written):
    """Compare rewards with direct counts over all pairs, for agreement and for the majority of the other peers."""
    said = {f"peer_{i}": [SILENT if one is None else box(one) for one in answers] for i, answers in enumerate(written)}
    for teacher in ("agreement", "majority"):
        session, _ = play(Peers(peers=len(written), answers=2, teacher=teacher), said, UNLABELLED)
        expected = []
        for i, answers in enumerate(written):
            others = [one for j, them in enumerate(written) for one in them if j != i]
            votes = {one: others.count(one) for one in others if one is not None}
            top = [one for one, count in votes.items() if count == max(votes.values())]
            share = [Fraction(votes.get(one, 0), len(others)) for one in answers]
            majority = [Fraction(one in top, len(top) or 1) for one in answers]
            expected += share if teacher == "agreement" else majority
        assert own(session) == pytest.approx([float(one) for one in expected], abs=1e-12)
        assert all(row.reward.team == 0 and row.reward.score == row.reward.local for row in session.rows())


def test_answers_agree_as_the_grader_says():
    session, _ = play(Peers(), {"peer_0": box(0.5), "peer_1": box("\\frac{1}{2}")}, UNLABELLED)
    assert own(session) == [1.0, 1.0] and session.info["agreement"] == 1.0


def test_a_peer_that_never_answers_agrees_with_nobody_and_is_marked():
    session, _ = play(Peers(peers=3), {"peer_0": SILENT, "peer_1": SILENT, "peer_2": RIGHT}, UNLABELLED)
    assert own(session) == [0.0] * 3
    assert [reply.malformed is not None for reply in session.replies] == [True, True, False]


def test_the_ground_truth_is_for_validation_alone():
    peers = {"peer_0": RIGHT, "peer_1": WRONG}
    session, _ = play(Peers(answers=3), peers, HALF)
    assert "acc" not in session.info and len(session.replies) == 6
    session, _ = play(Peers(answers=3), peers, replace(HALF, validate=True))
    right = {"acc": 0.5, "majority": 1.0, "right_peer_0": 1.0, "right_peer_1": 0.0}
    assert session.info == {**right, "agreement": 0.0} and own(session) == [None, None]


def test_reviews_reward_and_train_nothing_themselves():
    says = {"peer_0": [RIGHT, APPROVE, "no verdict"], "peer_1": [WRONG, APPROVE], "peer_2": [SILENT, REJECT, REJECT]}
    session, llm = play(Peers(peers=3, teacher="review"), says, UNLABELLED)
    assert own(session) == [0.5, 0.5, 0.0]
    assert [row.key is None for row in session.rows()] == [reply.probe for reply in session.replies]
    assert not any(SILENT in prompt for prompt in prompts_of(llm)) and len(acts_of(session, "peer_2")) == 3
