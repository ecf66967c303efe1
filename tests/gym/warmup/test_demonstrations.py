"""Demonstrations of the math and the search team: the workflows' own prompts, and experts with errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import pytest

from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym import arithmetic as arithmetic_expert
from verl_mas.gym import invented as search_expert
from verl_mas.gym.arithmetic import chain_split, signed
from verl_mas.gym.invented import InventedWorld
from verl_mas.gym.warmup import BARE_TEMPLATE, WarmUp, bare, warm_up
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Boxed
from verl_mas.workflow.base import resolve
from verl_mas.workflow.codecs import Malformed
from verl_mas.workflows.search_team import ANSWER, QUERY, Enough
from verl_mas.workflows.solver_verifier import Verdict

pytest.importorskip("tantivy")


def arithmetic(noise, count=300):
    return list(islice(arithmetic_expert.lessons(3, 9, noise=noise), count))


def chain(lesson):
    return lesson.prompt.split("\n")[0]


def result(lesson):
    return Boxed().parse(lesson.reply)


def test_without_noise_every_solution_is_right_and_approved():
    for lesson in arithmetic(0.0):
        assert chain_split(chain(lesson)) == TRAIN
        if lesson.agent == "solver":
            assert int(result(lesson)) == sum(signed(chain(lesson)))
        else:
            assert Verdict.parse(lesson.reply) is Verdict.APPROVE


def test_noise_makes_solutions_wrong_and_verdicts_follow_the_verifiers_own_result():
    lessons = arithmetic(0.3)
    solved = [lesson for lesson in lessons if lesson.agent == "solver"]
    right = sum(int(result(lesson)) == sum(signed(chain(lesson))) for lesson in solved) / len(solved)
    assert 0.4 < right < 0.75
    for solution, review in pairwise(lessons):
        if review.agent == "verifier":
            own = review.reply.split(" ")[0].rsplit("=")[-1]
            assert (Verdict.parse(review.reply) is Verdict.APPROVE) == (own == result(solution))


def test_without_noise_a_leader_adds_up_what_its_two_workers_report():
    delegated, first, second, answered = islice(arithmetic_expert.lessons(4, 9, noise=0.0, team="leader_workers"), 4)
    assert [lesson.agent for lesson in (delegated, first, second, answered)] == ["leader", "worker", "worker", "leader"]
    for part in (first, second):
        chain_of_part, _, reported = part.reply.rpartition("=")
        assert sum(signed(chain_of_part)) == int(reported) and part.prompt.endswith(f"{chain_of_part}=")
        assert f"{chain_of_part}=" in delegated.reply and f"Report: {part.reply}" in answered.prompt
    assert int(result(answered)) == sum(signed(chain(delegated)))


@pytest.mark.parametrize("team", ["debate", "generate_verify_refine", "cory"])
def test_the_lessons_of_other_teams_have_the_prompts_of_all_their_agents(team):
    lessons = list(islice(arithmetic_expert.lessons(3, 9, noise=0.0, team=team), 40))
    agents = resolve(WorkflowSpec(team)).agents
    assert {lesson.agent for lesson in lessons} == set(agents)
    for lesson in lessons:
        if lesson.agent != "verifier":
            assert int(result(lesson)) == sum(signed(chain(lesson)))


@pytest.fixture(scope="module")
def world():
    return InventedWorld(200)


def searched(world, noise, count=400):
    return list(islice(search_expert.lessons(world, (2,), noise=noise), count))


def test_without_noise_a_search_team_reads_two_documents_and_answers(world):
    lessons = searched(world, 0.0)
    agents = [lesson.agent for lesson in lessons if lesson.agent != "verifier"]
    assert agents[:6] == ["searcher", "searcher", "answerer"] * 2
    for lesson in lessons:
        if lesson.agent == "answerer":
            # The answer is in the last document.
            assert f" {ANSWER.parse(lesson.reply)}." in lesson.prompt.rsplit("<information>")[-1]


def test_verdicts_are_a_minority_of_the_lessons(world):
    agents = [lesson.agent for lesson in searched(world, 0.1)]
    assert 0.15 < agents.count("verifier") / len(agents) < 0.4


def test_the_lessons_contain_every_name(world):
    text = " ".join(lesson.prompt for lesson in searched(world, 0.1, count=4_000))
    assert all(name in text for names in world.kinds.values() for name in names)


def test_the_facts_of_the_lessons_are_not_those_of_the_world(world):
    variant = world.with_other_facts(1)
    assert variant.kinds == world.kinds and variant.facts.keys() == world.facts.keys()
    assert sum(variant.facts[fact] == world.facts[fact] for fact in world.facts) < 0.2 * len(world.facts)
    assert variant.passages != world.passages and world.with_other_facts(1).passages == variant.passages


def test_random_replies_are_well_formed(world):
    codecs = {"verifier": Enough, "searcher": QUERY, "answerer": ANSWER}
    for lesson in searched(world, 0.5):
        assert not isinstance(codecs[lesson.agent].parse(lesson.reply), Malformed), lesson.reply


def test_prompts_are_formatted_as_by_the_chat_template():
    from jinja2 import Template

    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "r"},
    ]
    assert bare(messages) == Template(BARE_TEMPLATE).render(messages=messages)


def test_a_warmed_up_model_can_be_trained_further(tmp_path):
    brief = WarmUp(steps=3, batch=4, lessons=40, hidden=32, layers=1)
    losses = []
    first = warm_up(tmp_path / "first", iter(arithmetic(0.3)), brief, lambda step, loss: losses.append(loss))
    more = replace(brief, start=str(first))
    second = warm_up(tmp_path / "second", iter(arithmetic(0.3)), more, lambda step, loss: losses.append(loss))
    assert losses[3] < losses[0]
    assert (first / "tokenizer.json").read_text() == (second / "tokenizer.json").read_text()
