"""Word-level F1 between a short answer and the accepted answer that gives the highest F1."""

from verl_mas.environment.grading.grader import register_grader
from verl_mas.environment.grading.qa import f1 as overlap
from verl_mas.environment.grading.qa import golden_answers


@register_grader("f1", read=golden_answers)
def f1(golden: list[str], answer: str) -> float:
    return overlap(answer, golden)
