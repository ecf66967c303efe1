import asyncio

import numpy as np
import pytest

from verl_mas.config.schema import WorkflowSpec
from verl_mas.environment.grading.grader import GRADERS, Grader
from verl_mas.environment.grading.qa import f1, golden_answers, normalise
from verl_mas.errors import ConfigError, DataError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.base import resolve
from verl_mas.workflow.run import run


def grade(name, truth, answer):
    grader = GRADERS[name]
    return asyncio.run(grader(grader.read(truth), answer))


def test_short_answers_are_graded_by_match_and_by_shared_words():
    assert (
        grade("em", {"target": ["Kleb", "the Tazor."]}, "tazor") == 1.0 and grade("em", "Tazor", "city of Tazor") == 0.0
    )
    assert grade("f1", "Tazor", "city of Tazor") == pytest.approx(0.5)


def test_a_math_answer_is_right_wrong_or_could_not_be_checked():
    pytest.importorskip("math_verify")
    assert grade("math", "\\frac{1}{2}", "0.5") == 1.0 and grade("math", 1, "2") == 0.0
    assert grade("math", "42", "9^{9^{9^{9}}}") is None


@pytest.mark.parametrize("team", ["solver_verifier", "search_team"])
def test_a_score_that_names_no_grader_is_refused_with_the_known_ones(team):
    with pytest.raises(ConfigError, match=r"mas.workflow.args.score=mth\n(?s:.)*known: .*em, f1, math"):
        resolve(WorkflowSpec(team, args={"score": "mth"}))


def test_a_registered_grader_may_give_half():
    GRADERS.register("test_half")(Grader(lambda truth, answer: 0.5))
    llm = ScriptedLLM({"solver": "\\boxed{7}", "verifier": "<verify>reject</verify>"})
    workflow = resolve(WorkflowSpec("solver_verifier", args={"score": "test_half", "verdict_reward": 0.3}))
    session = run(workflow, Task([{"role": "user", "content": "?"}]), llm)
    assert session.team_reward == session.info["acc"] == 0.5
    # A grade below 1 is not right, so the right verdict is to reject.
    assert session.replies[1].reward == 0.3


def test_texts_are_normalised_as_by_squad():
    texts = ["The  Beatles!", "an apple, a day", "U.S.A.", "Theatre", ""]
    assert [normalise(text) for text in texts] == ["beatles", "apple day", "usa", "theatre", ""]


@pytest.mark.parametrize(
    ("answer", "golden", "score"), [("", ["y"], 0.0), ("b a c c", ["c b c"], 1.0), ("p q", ["z", "p"], 2 / 3)]
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
