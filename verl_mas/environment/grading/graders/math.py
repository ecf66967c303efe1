"""Grades whether an answer is mathematically equal to the ground truth."""

from verl_mas.environment.grading import math as answers
from verl_mas.environment.grading.grader import register_grader
from verl_mas.environment.grading.math import math_verify


@register_grader("math", read=answers.ground_truth, check=math_verify.require)
async def math(truth: str, answer: str) -> float | None:
    grade = await answers.shared_checker().agrade(truth, answer)
    return float(grade is answers.Grade.CORRECT) if grade.checked else None
