"""Exact match of a short answer with an accepted answer."""

from verl_mas.environment.grading.grader import register_grader
from verl_mas.environment.grading.qa import exact_match, golden_answers


@register_grader("em", read=golden_answers)
def em(golden: list[str], answer: str) -> float:
    return exact_match(answer, golden)
