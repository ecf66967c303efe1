"""`serve` ends with one error if it cannot serve, before the server starts or after."""

import json
import socket

import pytest

pytest.importorskip("tantivy")

from commands import output_of

FINE = '{"id": "1", "title": "Lamps", "text": "Lamps need oil."}\n'


@pytest.fixture
def no_server(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets=None: pytest.fail("the server was started"))


@pytest.mark.usefixtures("no_server")
def test_a_server_without_an_index_or_a_free_port_is_refused_before_it_starts(tmp_path, capsys):
    corpus, serving = tmp_path / "c.jsonl", ["retriever", "serve", "--index", tmp_path / "i", "--port"]
    assert "retriever build --corpus" in output_of(capsys, *serving, 0, code=1)
    corpus.write_text(FINE)
    output_of(capsys, "retriever", "build", "--corpus", corpus, "--index", tmp_path / "i")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "already in use" in output_of(capsys, *serving, taken.getsockname()[1], code=1)


@pytest.mark.timeout(60)
def test_a_server_whose_index_cannot_be_opened_ends_with_the_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("verl_mas.cli.retriever.read_meta", lambda path: None)
    error = output_of(capsys, "retriever", "serve", "--index", tmp_path, "--port", 0, code=1)
    assert "retriever build --corpus" in error and "Traceback" not in error


def test_an_index_is_built_and_searched_with_json(tmp_path, capsys):
    corpus, index = tmp_path / "c.jsonl", str(tmp_path / "i")
    corpus.write_text(FINE)
    built = output_of(capsys, "retriever", "build", "--corpus", corpus, "--index", index, "--json")
    assert json.loads(built) == {"index": index, "passages": 1}
    (hit,) = json.loads(output_of(capsys, "retriever", "query", "--index", index, "oil", "--json"))["hits"]
    assert (hit["id"], hit["title"], hit["text"]) == ("1", "Lamps", "Lamps need oil.") and hit["score"] > 0
