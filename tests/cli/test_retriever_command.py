"""`serve` ends with one error if it cannot serve, before the server starts or after."""

from __future__ import annotations

import json
import socket

import pytest

pytest.importorskip("tantivy")

from commands import output_of

FINE = '{"text": "fine"}\n'


@pytest.fixture
def refused(tmp_path, capsys):
    def refused(content: str | None, port: int = 0) -> str:
        if content is not None:
            (tmp_path / "c.jsonl").write_text(content)
        paths = ["--corpus", tmp_path / "c.jsonl", "--index", tmp_path / "i"]
        return output_of(capsys, "retriever", "serve", *paths, "--port", port, code=1)

    return refused


@pytest.fixture
def no_server(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets=None: pytest.fail("the server was started"))


@pytest.mark.parametrize(
    ("content", "message"), [(None, "c.jsonl"), ('{"id": 1}\n', "row 0 (id 1) has no text"), ("no json", "line 1")]
)
@pytest.mark.usefixtures("no_server")
def test_wrong_arguments_are_refused_before_the_server_starts(refused, content, message):
    assert message in refused(content)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("content", "message"), [(FINE * 3 + "{}\n", "row 3"), ("", "the corpus is empty")])
def test_a_server_whose_index_cannot_be_built_ends_with_the_error(refused, content, message):
    error = refused(content)
    assert message in error and "Traceback" not in error


@pytest.mark.usefixtures("no_server")
def test_a_port_in_use_is_refused(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "already in use" in refused(FINE, taken.getsockname()[1])


@pytest.mark.parametrize("topk", ["0", "-1", "few"])
def test_a_topk_below_1_is_refused(topk, capsys):
    assert "--topk" in output_of(capsys, "retriever", "query", "--index", "i", "--topk", topk, "what", code=2)


def test_an_index_is_built_and_searched_with_json(tmp_path, capsys):
    corpus, index = tmp_path / "c.jsonl", str(tmp_path / "i")
    corpus.write_text('{"id": "1", "title": "Lamps", "text": "Lamps need oil."}\n')
    built = output_of(capsys, "retriever", "build", "--corpus", corpus, "--index", index, "--json")
    assert json.loads(built) == {"index": index, "passages": 1}
    (hit,) = json.loads(output_of(capsys, "retriever", "query", "--index", index, "oil", "--json"))["hits"]
    assert (hit["id"], hit["title"], hit["text"]) == ("1", "Lamps", "Lamps need oil.") and hit["score"] > 0
