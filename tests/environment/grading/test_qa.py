import numpy as np
import pytest

from verl_mas.environment.grading.qa import exact_match, f1, golden_answers, normalise
from verl_mas.errors import DataError


def test_texts_are_normalised_as_by_squad():
    texts = ["The  Beatles!", "an apple, a day", "U.S.A.", "Theatre", ""]
    assert [normalise(text) for text in texts] == ["beatles", "apple day", "usa", "theatre", ""]


def test_an_answer_matches_any_accepted_one():
    assert exact_match("the beatles", ["Rolling Stones", "Beatles."]) == 1.0
    assert exact_match("beatles band", ["Beatles"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "golden", "score"),
    [
        ("Barack Obama", ["Obama"], 2 / 3),
        ("x", ["y"], 0.0),
        ("", ["y"], 0.0),
        ("b a c c", ["c b c"], 1.0),
        ("p q", ["z", "p"], 2 / 3),
    ],
)
def test_f1_is_the_overlap_of_words(answer, golden, score):
    assert f1(answer, golden) == pytest.approx(score)


def test_every_shape_of_ground_truth_is_read():
    for truth in ("Rome", ["Rome"], {"target": ["Rome"]}, {"target": np.array(["Rome"])}):
        assert golden_answers(truth) == ["Rome"]


@pytest.mark.parametrize("truth", [None, "", [""], {"target": []}, 5, [None]])
def test_a_question_without_an_answer_is_refused(truth):
    with pytest.raises(DataError, match="ground truth"):
        golden_answers(truth)
