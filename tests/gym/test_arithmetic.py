"""Chains of additions: the data set, and demonstrations of teams on it."""

from __future__ import annotations

from itertools import accumulate, islice, pairwise

import pytest

from verl_mas.config.schema import WorkflowSpec
from verl_mas.errors import ConfigError
from verl_mas.gym import arithmetic
from verl_mas.gym.arithmetic import chain_split, chains, signed
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Boxed
from verl_mas.workflow.base import resolve
from verl_mas.workflows.solver_verifier import ReviewVerdict


def shown(noise, count=300, terms=3, **team):
    return list(islice(arithmetic.lessons(terms, 9, noise=noise, **team), count))


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


def test_without_noise_a_leader_adds_up_what_its_two_workers_report():
    delegated, first, second, answered = shown(0.0, 4, terms=4, team="leader_workers")
    assert [lesson.agent for lesson in (delegated, first, second, answered)] == ["leader", "worker", "worker", "leader"]
    for part in (first, second):
        chain_of_part, _, reported = part.reply.rpartition("=")
        assert sum(signed(chain_of_part)) == int(reported) and part.prompt.endswith(f"{chain_of_part}=")
        assert f"{chain_of_part}=" in delegated.reply and f"Report: {part.reply}" in answered.prompt
    assert int(result(answered)) == sum(signed(chain(delegated)))


@pytest.mark.parametrize("team", ["debate", "generate_verify_refine", "cory"])
def test_the_lessons_of_other_teams_have_the_prompts_of_all_their_agents(team):
    lessons = shown(0.0, 40, team=team)
    assert {lesson.agent for lesson in lessons} == set(resolve(WorkflowSpec(team)).agents)
    for lesson in lessons:
        if lesson.agent != "verifier":
            assert int(result(lesson)) == sum(signed(chain(lesson)))


def test_chains_are_right_and_every_intermediate_result_is_a_digit():
    for item in (*chains(200), *chains(16, split="test")):
        assert eval(item.question.rstrip("=")) == int(item.truth)
        assert all(0 <= total <= 9 for total in accumulate(signed(item.question))), item.question
    with pytest.raises(ConfigError, match="only"):
        chains(10_000, terms=3)
