import json
from functools import partial
from pathlib import Path

import pytest
from broken import full_disk

pytest.importorskip("tantivy")

from verl_mas.environment.retrieval.client import check_source
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import META, build, open_index
from verl_mas.errors import ConfigError, DataError, DiskError

PASSAGES = [
    Passage("p1", "The capital of Velora is Quonset.", "Velora"),
    Passage("p2", "Quonset was founded by Ilmari Dace.", "Quonset"),
    Passage("p3", "Ilmari Dace was a painter.", "Ilmari Dace"),
    Passage("p4", "Painters paint paintings.", "Painting"),
]


@pytest.fixture
def index(tmp_path):
    return build(PASSAGES, tmp_path / "index")


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("Who founded Quonset?", "p2"), ("capital of Velora", "p1"), ("painting", "p4"),
        # Queries have no syntax, so operators have no effect.
        ('title:"Quonset" AND -(founded', "p2"), ("Quonset^9 founded~", "p2"), ("*:* Quonset OR founded", "p2"),
        ("\\Quonset founded +", "p2"),
        # These queries have no known word.
        ("", None), ("???", None), ("zzzunknown", None),
    ],
)  # fmt: skip
def test_the_best_passage_comes_first(index, query, best):
    assert [hit.id for hit in index.search([query], 1)[0]] == ([] if best is None else [best])


def test_words_are_stemmed_scores_fall_and_a_long_query_is_truncated(index):
    painted, scored = index.search(["PAINTER painted", "capital Quonset painter"], 4)
    assert "p4" in {hit.id for hit in painted}
    scores = [hit.score for hit in scored]
    assert scores == sorted(scores, reverse=True) and scores[-1] > 0
    assert len(index.terms(" ".join(f"word{n}" for n in range(10_000)))) == 64


def test_equal_scores_keep_the_order_of_the_corpus(tmp_path):
    index = build([Passage(str(i), "same words") for i in range(50)], tmp_path / "i")
    assert [hit.id for hit in index.search(["words"], 5)[0]] == ["0", "1", "2", "3", "4"]


def test_an_empty_corpus_and_a_folder_with_files_are_refused(tmp_path, index):
    with pytest.raises(DataError, match="empty"):
        build([], tmp_path / "i")
    with pytest.raises(ConfigError, match="retriever build"):
        open_index(tmp_path / "i")
    for folder in (tmp_path / "index", tmp_path):
        with pytest.raises(ConfigError, match="new or empty folder"):
            build(PASSAGES, folder)


@pytest.mark.parametrize("rest", [b"", None])
def test_an_index_with_a_missing_or_truncated_file_is_refused(tmp_path, index, rest):
    store = next((tmp_path / "index").glob("*.store"))
    store.unlink()  # not cut in place: the fixture has it mapped
    if rest is not None:
        store.write_bytes(rest)
    for refusing in (open_index, partial(check_source, topk=3)):
        with pytest.raises(ConfigError, match=store.name):
            refusing(str(tmp_path / "index"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"passages": 5}, "has 4 of 5 passages"), ({"format": 99}, "format 99"), (None, "has an unreadable")],
)
def test_an_index_that_differs_from_its_metadata_is_refused(tmp_path, index, changed, says):
    meta = tmp_path / "index" / META
    meta.write_text(json.dumps(json.loads(meta.read_text()) | changed) if changed else "{")
    with pytest.raises(ConfigError, match=says):
        open_index(tmp_path / "index")


def test_an_interrupted_build_leaves_nothing_and_can_be_repeated(tmp_path):
    def broken():
        yield from PASSAGES
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        build(broken(), tmp_path / "i")
    assert list(tmp_path.iterdir()) == []
    assert len(build(PASSAGES, tmp_path / "i")) == 4


@pytest.mark.parametrize("size", [0, 1000])
def test_a_full_disk_is_named_and_leaves_no_index(size, tmp_path):
    with full_disk(size), pytest.raises(DiskError, match="the index cannot be written"):
        build(PASSAGES * 50, tmp_path / "i")
    assert list(tmp_path.iterdir()) == []


def test_dense_vectors_by_an_encoder_of_that_name(tmp_path):
    pytest.importorskip("faiss")
    from transformers import BertConfig, BertModel

    from verl_mas.testing.tiny_model import byte_tokenizer

    tokenizer = byte_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    tokenizer.save_pretrained(tmp_path / "encoder")
    BertModel(config).save_pretrained(tmp_path / "encoder")
    index = build(PASSAGES, tmp_path / "i", encoder=str(tmp_path / "encoder"))
    again = open_index(tmp_path / "i")
    assert str(tmp_path / "i" / "vectors.faiss") in Path("/proc/self/maps").read_text()
    hits = again.search(["Velora"], 9)[0]
    assert hits == index.search(["Velora"], 9)[0]
    assert {hit.id for hit in hits} == {"p1", "p2", "p3", "p4"} and hits[0].score <= 1.0001
    many = again.search(["Velora"] * 130, 1)
    assert len(many) == 130 and many[-1][0].id == hits[0].id and again.search([], 1) == []
    with pytest.raises(ConfigError, match=r"--encoder .* cannot be loaded(.|\n)*rule"):
        build(PASSAGES, tmp_path / "none", encoder=str(tmp_path))
