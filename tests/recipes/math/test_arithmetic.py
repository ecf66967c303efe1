"""Chains of additions: the data set, and demonstrations on it."""

from itertools import accumulate, islice, pairwise

import pytest

from verl_mas.config.hydra.recipe.math import arithmetic
from verl_mas.config.hydra.recipe.math.arithmetic import chain_split, chains, signed
from verl_mas.errors import ConfigError
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Boxed
from verl_mas.workflows.solver_verifier import ReviewVerdict


def shown(noise):
    return list(islice(arithmetic.lessons(3, 9, noise=noise), 300))


def chain(lesson):
    return lesson.prompt.split("\n")[0]


def result(lesson):
    return Boxed().parse(lesson.reply)


def test_without_noise_every_solution_is_right_and_approved():
    for lesson in shown(0.0):
        assert chain_split(chain(lesson)) == TRAIN
        if lesson.agent == "solver":
            assert int(result(lesson)) == sum(signed(chain(lesson)))
        else:
            assert ReviewVerdict.parse(lesson.reply) is ReviewVerdict.APPROVE


def test_noise_makes_solutions_wrong_and_verdicts_follow_the_verifiers_own_result():
    lessons = shown(0.3)
    solved = [lesson for lesson in lessons if lesson.agent == "solver"]
    right = sum(int(result(lesson)) == sum(signed(chain(lesson))) for lesson in solved) / len(solved)
    assert 0.4 < right < 0.75
    for solution, review in pairwise(lessons):
        if review.agent == "verifier":
            own = review.reply.split(" ")[0].rsplit("=")[-1]
            assert (ReviewVerdict.parse(review.reply) is ReviewVerdict.APPROVE) == (own == result(solution))


def test_chains_are_right_and_every_intermediate_result_is_a_digit():
    for item in (*chains(200), *chains(16, split="test")):
        assert eval(item.question.rstrip("=")) == int(item.truth)
        assert all(0 <= total <= 9 for total in accumulate(signed(item.question))), item.question
    with pytest.raises(ConfigError, match="only"):
        chains(10_000, terms=3)
