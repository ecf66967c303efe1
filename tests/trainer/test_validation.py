from __future__ import annotations

import pytest

from verl_mas.trainer.validation import ScoredSession, Validation, confusion


def session(score, number=0, uid="val1-0-0", verdicts=None, **info):
    return ScoredSession(
        uid=uid, number=number, source="s", truth="t", turns=2, score=score, info=info, verdicts=verdicts or {}
    )


def test_accuracy_goes_before_the_score():
    assert session(0.2, acc=1.0).value == 1.0 and session(2.0, acc=0.0).value == 0.0
    assert session(0.99).value == 0.99


def test_verdicts_are_compared_with_the_truth():
    found = confusion(
        [
            session(1.0, verdicts={"verifier": [(False, False), (True, True)]}),
            session(0.0, verdicts={"verifier": [(True, False)]}),
            session(0.0, verdicts={"verifier": [(None, False)]}),
            session(0.0, verdicts={"verifier": []}),
            session(1.0),
        ]
    )
    assert found == {
        "val-aux/mas/verifier/verdict/accepts_right": 0.25,
        "val-aux/mas/verifier/verdict/accepts_wrong": 0.25,
        "val-aux/mas/verifier/verdict/rejects_wrong": 0.25,
        "val-aux/mas/verifier/verdict/malformed_wrong": 0.25,
    }


@pytest.fixture
def validation():
    made = Validation(host=None)
    made.sessions = [session(1.0, 0, reviews=2, verdicts={"v": [(True, True)]}), session(0.0, 1, reviews=1)]
    made.expected = {("s", "val1-0-0"): 3, ("s", "val1-0-1"): 3}
    return made


def test_only_numbers_and_text_are_handed_to_verl(validation):
    assert validation._infos() == {"reward": [1.0, 0.0], "reviews": [2, 1]}


def test_sessions_that_failed_solved_nothing(validation):
    found = validation._passes()
    assert found["val-core/s/pass@1"] == pytest.approx(1 / 6)
    assert found["val-core/s/pass@3"] == pytest.approx(1 / 2)
    assert found["val-core/s/mean@3"] == pytest.approx(1 / 6)
    assert not any("mean_of_sets" in name for name in found)


def test_several_sets_have_a_plain_mean(validation):
    validation.sessions.append(ScoredSession("val1-0-9", 0, "other", "t", 2, 1.0, {}))
    found = validation._passes()
    assert found["val-core/mean_of_sets/pass@1"] == pytest.approx((1 / 6 + 1) / 2)


def test_a_session_reads_as_a_whole():
    made = session(1.0)
    made.acts = [("solver", "2+2?", "5"), ("verifier", "is it 5?", "no")]
    assert made.prompt == "2+2?"
    assert made.text == "[solver] 5\n\n[verifier] no"
