"""The invented world: documents, questions, and demonstrations of a search team."""

from itertools import islice

import pyarrow.parquet as pq
import pytest

from verl_mas.cli.data import main
from verl_mas.config.hydra.recipe.search.invented import InventedWorld, lessons
from verl_mas.environment.retrieval.index import build
from verl_mas.errors import ConfigError
from verl_mas.workflows.search_team import ANSWER

pytest.importorskip("tantivy")


@pytest.fixture(scope="module")
def world():
    return InventedWorld(entities=2_000)


def test_every_entity_has_one_document_with_all_its_facts(world):
    assert len({passage.id for passage in world.passages}) == len(world.passages) == 2_000
    documents = {passage.title: passage.text for passage in world.passages}
    for (name, relation), other in world.facts.items():
        assert relation.statement.format(s=name, o=other) in documents[name]


def test_the_path_of_a_question_leads_to_its_answer_which_is_not_in_it(world):
    documents = {passage.title: passage.text for passage in world.passages}
    questions = world.questions(300, hops=(1, 2, 3, 4))
    for question in questions:
        for here, there in zip(question.path, [*question.path[1:], question.answer], strict=True):
            assert there in documents[here]
        assert question.path[0] in question.text
    assert sum(question.answer in question.text for question in questions) < 0.02 * len(questions)


def test_train_and_test_share_no_question_and_no_start(world):
    train, test = world.questions(300), world.questions(100, split="test")
    assert not {question.path[0] for question in train} & {question.path[0] for question in test}


def test_one_search_does_not_find_the_whole_path_but_one_for_each_hop_does(world, tmp_path):
    """A team therefore needs a query for each hop."""
    index = build(world.passages, tmp_path / "i")
    questions = world.questions(200, hops=(2,))
    whole = index.search([question.text for question in questions], 3)
    last = sum(question.path[-1] in {hit.id for hit in hits} for question, hits in zip(questions, whole, strict=True))
    steps = index.search([query for question in questions for query in question.sub_queries], 3)
    path = [title for question in questions for title in question.path]
    hop_by_hop = sum(title in {hit.id for hit in hits} for title, hits in zip(path, steps, strict=True))
    assert last / len(questions) < 0.3
    assert hop_by_hop / len(path) > 0.95


@pytest.fixture(scope="module")
def small():
    return InventedWorld(200)


def searched(small, noise, count=400):
    return list(islice(lessons(small, (2,), noise=noise), count))


def test_without_noise_a_search_team_reads_two_documents_and_answers(small):
    taught = [lesson for lesson in searched(small, 0.0) if lesson.agent != "verifier"]
    assert [lesson.agent for lesson in taught[:6]] == ["searcher", "searcher", "answerer"] * 2
    for lesson in taught:
        if lesson.agent == "answerer":
            # The answer is in the last document.
            assert f" {ANSWER.parse(lesson.reply)}." in lesson.prompt.rsplit("<information>")[-1]


def test_the_lessons_contain_every_name(small):
    text = " ".join(lesson.prompt for lesson in searched(small, 0.1, count=4_000))
    assert all(name in text for names in small.kinds.values() for name in names)


def test_the_facts_of_the_lessons_are_not_those_of_the_world(small):
    variant = small.with_other_facts(1)
    assert variant.kinds == small.kinds and variant.facts.keys() == small.facts.keys()
    assert sum(variant.facts[fact] == small.facts[fact] for fact in small.facts) < 0.2 * len(small.facts)
    assert variant.passages != small.passages and small.with_other_facts(1).passages == variant.passages


def test_a_world_with_too_few_questions_is_refused_before_anything_is_written_or_trained(tmp_path):
    with pytest.raises(ConfigError, match="does not have that many"):
        main(["invented", "--out", str(tmp_path), "--entities", "100", "--test-rows", "5000", "--noise", "0.1"])
    assert not list(tmp_path.iterdir())


def test_the_invented_world_is_written_with_its_corpus(tmp_path):
    size = ["--entities", "500", "--train-rows", "50", "--test-rows", "10"]
    main(["invented", "--out", str(tmp_path), *size])
    assert len((tmp_path / "corpus.jsonl").read_text().splitlines()) == 500
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert {row["data_source"] for row in rows} == {"invented_2_hops", "invented_3_hops"}
    assert {len(row["reward_model"]["ground_truth"]) for row in rows} == {1}
