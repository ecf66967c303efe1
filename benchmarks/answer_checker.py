"""Measure how many answers are checked per second if one in a thousand answers hangs sympy.

The script fails if a grade is not the expected one.

python benchmarks/answer_checker.py --answers 8000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter

from verl_mas.environment.grading.math import AnswerChecker, Grade, clean, plain_number

# Shape -> weight, roughly as in the answers of competition sets.
SHAPES = {
    "{}": 50,
    "\\frac{{{}}}{{{}}}": 15,
    "\\sqrt{{{}}}+{}": 10,
    "{}\\pi - {}": 10,
    "{}x^2+{}x": 10,
    "({}, {})": 5,
}
SPELLINGS = ("{}", "{}.", "${}$", "{{{}}}")
# math-verify reads {(1, 2)} as a set that contains the pair, so it grades this spelling as wrong.
MISREAD = ("({}, {})", "{{{}}}")
HANGING = "9^{{9^{{9^{{{}}}}}}}"


def answers(count: int, hanging: int, shapes: dict[str, int], rng: random.Random) -> list[tuple[str, str, Grade]]:
    """Make tasks with eight answers each, and the expected grade of each answer. No answer repeats within a task, so
    the cache of grades does not help. `hanging` answers are replaced by powers that hang sympy."""
    pairs = []
    for shape in rng.choices(list(shapes), list(shapes.values()), k=count // 8):
        n, d = rng.randrange(10**6), rng.randrange(2, 999)
        truth = shape.format(n, d)
        for spelling in SPELLINGS:
            grade = Grade.WRONG if (shape, spelling) == MISREAD else Grade.CORRECT
            pairs.append((truth, spelling.format(truth), grade))
        pairs += [(truth, shape.format(n + off, d), Grade.WRONG) for off in range(1, 5)]
    for n, place in enumerate(rng.sample(range(len(pairs)), hanging)):
        pairs[place] = ("42", HANGING.format(n + 9), Grade.TIMED_OUT)
    return pairs


def without_sympy(truth: str, answer: str) -> bool:
    return clean(answer) == truth or None not in (plain_number(truth), plain_number(clean(answer)))


async def measure(pairs: list[tuple[str, str, Grade]], workers: int) -> float:
    checker = AnswerChecker(workers=workers)
    await checker.agrade("\\frac{1}{2}", "1/2 ")
    started = time.perf_counter()
    grades = await asyncio.gather(*(checker.agrade(truth, answer) for truth, answer, _ in pairs))
    seconds = time.perf_counter() - started
    checker.close()
    wrong = [(*pair, grade) for pair, grade in zip(pairs, grades, strict=True) if grade is not pair[-1]]
    assert not wrong, f"{len(wrong)} of {len(pairs)} answers got another grade than expected: {wrong[:5]}"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=8_000)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    hanging = options.answers // 1_000
    for shapes in (SHAPES, {shape: weight for shape, weight in SHAPES.items() if shape != "{}"}):
        pairs = answers(options.answers, hanging, shapes, random.Random(0))
        simple = sum(without_sympy(truth, answer) for truth, answer, _ in pairs)
        rate = len(pairs) / asyncio.run(measure(pairs, options.workers))
        expected = Counter(grade.value for _, _, grade in pairs)
        print(
            f"{len(pairs)} answers ({simple} never reach sympy): {rate:.0f}/s, {rate / 500:.1f}x the target of 500/s; "
            f"each with the expected grade: {dict(expected)}"
        )


if __name__ == "__main__":
    main()
