"""`serve` ends with one error if it cannot serve, before the server starts or after."""

from __future__ import annotations

import json
import socket

import pytest

pytest.importorskip("tantivy")

from verl_mas.cli import main

FINE = '{"text": "fine"}\n'


@pytest.fixture
def serve(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def serving(content: str | None) -> int:
        if content is not None:
            (tmp_path / "c.jsonl").write_text(content)
        paths = ["--corpus", str(tmp_path / "c.jsonl"), "--index", str(tmp_path / "i")]
        return main(["retriever", "serve", *paths, "--port", str(port)])

    return serving


@pytest.mark.parametrize(
    ("content", "message"), [(None, "c.jsonl"), ('{"id": 1}\n', "row 0 (id 1) has no text"), ("no json", "line 1")]
)
def test_wrong_arguments_are_refused_before_the_server_starts(serve, capsys, monkeypatch, content, message):
    monkeypatch.setattr("uvicorn.Server.run", lambda self: pytest.fail("the server was started"))
    assert serve(content) == 1
    assert message in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("content", "message"), [(FINE * 3 + "{}\n", "row 3"), ("", "the corpus is empty")])
def test_a_server_whose_index_cannot_be_built_ends_with_the_error(serve, capsys, content, message):
    assert serve(content) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_a_port_in_use_is_refused(serve, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: pytest.fail("the server was started"))
    (tmp_path / "c.jsonl").write_text(FINE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        paths = ["--corpus", str(tmp_path / "c.jsonl"), "--index", str(tmp_path / "i")]
        assert main(["retriever", "serve", *paths, "--port", str(taken.getsockname()[1])]) == 1
    assert "already in use" in capsys.readouterr().err


@pytest.mark.parametrize("topk", ["0", "-1", "few"])
def test_a_topk_below_1_is_refused(topk, capsys):
    assert main(["retriever", "query", "--index", "i", "--topk", topk, "what"]) == 2
    assert "--topk" in capsys.readouterr().err


def test_an_index_is_built_and_searched_with_json(tmp_path, capsys):
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "Lamps", "text": "Lamps need oil."}\n')
    index = str(tmp_path / "i")
    assert main(["retriever", "build", "--corpus", str(tmp_path / "c.jsonl"), "--index", index, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"index": index, "passages": 1}
    assert main(["retriever", "query", "--index", index, "oil", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["title"], hit["text"]) == ("1", "Lamps", "Lamps need oil.") and hit["score"] > 0
