"""Exact match of a short answer with one of the accepted ones."""

from verl_mas.grading.grader import grader
from verl_mas.grading.qa import exact_match, golden_answers


@grader("em", read=golden_answers)
def em(golden: list[str], answer: str) -> float:
    return exact_match(answer, golden)
