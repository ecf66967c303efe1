from __future__ import annotations

import pytest

from verl_mas.errors import ConfigError
from verl_mas.gym.invented import RELATIONS, InventedWorld
from verl_mas.retrieval.index import build


@pytest.fixture(scope="module")
def world():
    return InventedWorld(entities=2_000)


def test_a_seed_identifies_a_world(world):
    assert InventedWorld(2_000).passages == world.passages
    assert InventedWorld(2_000, seed=1).passages != world.passages
    assert InventedWorld(2_000).questions(20) == world.questions(20)


def test_every_entity_has_one_document_with_all_its_facts(world):
    assert len({passage.id for passage in world.passages}) == len(world.passages) == 2_000
    documents = {passage.title: passage.text for passage in world.passages}
    for (name, relation), other in world.facts.items():
        assert relation.statement.format(s=name, o=other) in documents[name]


def test_the_path_of_a_question_leads_to_its_answer(world):
    documents = {passage.title: passage.text for passage in world.passages}
    for question in world.questions(200, hops=(1, 2, 3, 4)):
        for here, there in zip(question.path, [*question.path[1:], question.answer], strict=True):
            assert there in documents[here]
        assert question.path[0] in question.text


def test_the_answer_is_not_in_the_question(world):
    questions = world.questions(300)
    assert sum(question.answer in question.text for question in questions) < 0.02 * len(questions)


def test_train_and_test_share_no_question_and_no_start(world):
    train, test = world.questions(300), world.questions(100, split="test")
    assert not {question.path[0] for question in train} & {question.path[0] for question in test}


@pytest.mark.parametrize("seed", range(4))
def test_a_small_world_has_as_many_held_out_questions_whatever_its_seed(seed):
    assert len(InventedWorld(200, seed).questions(60, hops=(2,), split="test")) == 60


def test_hops_are_mixed_evenly(world):
    hops = [question.hops for question in world.questions(100, hops=(2, 3))]
    assert hops.count(2) == hops.count(3) == 50


def test_every_kind_of_entity_is_reachable_or_a_start():
    kinds = {relation.of for relation in RELATIONS} | {relation.to for relation in RELATIONS}
    assert kinds == set(InventedWorld(100).kinds)


def test_more_questions_than_the_world_holds_are_refused():
    with pytest.raises(ConfigError, match="does not have that many"):
        InventedWorld(100).questions(5_000, hops=(1,), split="test")


def test_one_search_does_not_find_the_whole_path_but_one_for_each_hop_does(world, tmp_path):
    """So the task needs a query per hop."""
    pytest.importorskip("tantivy")
    index = build(world.passages, tmp_path / "i")
    questions = world.questions(200, hops=(2,))
    whole = index.search([question.text for question in questions], 3)
    last = sum(question.path[-1] in {hit.id for hit in hits} for question, hits in zip(questions, whole, strict=True))
    steps = index.search([query for question in questions for query in question.sub_queries], 3)
    path = [title for question in questions for title in question.path]
    hop_by_hop = sum(title in {hit.id for hit in hits} for title, hits in zip(path, steps, strict=True))
    assert last / len(questions) < 0.3
    assert hop_by_hop / len(path) > 0.95
