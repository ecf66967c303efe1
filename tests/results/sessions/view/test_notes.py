"""Notes on sessions, and who may write them."""

import logging

import pytest
from starlette.testclient import TestClient
from view_runs import session, write_run

from verl_mas.results.sessions.run import open_run
from verl_mas.results.sessions.view import ViewOptions, note_server, write_view
from verl_mas.results.sessions.view.notes import FILE, MOST, read_notes

ORIGIN = "http://127.0.0.1"
OURS = {"Origin": ORIGIN}
NOTE = {"session": "train/1/1-0/0", "text": " why? "}


@pytest.fixture
def server(tmp_path):
    out, view = write_view(write_run(tmp_path, [session()]), ViewOptions(notes=True), live=True)
    return note_server(out, view)


@pytest.fixture
def client(server):
    return TestClient(server.app, base_url=f"{ORIGIN}/{server.key}")


def test_the_last_note_on_a_session_counts_and_a_damaged_line_is_named_once(client, tmp_path, caplog):
    for text in ("first", "", " why? ", "\u2028 \x1b"):
        assert client.post("note", json=NOTE | {"text": text}, headers=OURS).json() == {}
    client.post("note", json=NOTE | {"session": "train/1/1-0/1"}, headers=OURS)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"session": "train')
    run = open_run(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert read_notes(run) == {"train/1/1-0/0": "\x1b", "train/1/1-0/1": "why?"}
    (warning,) = caplog.records
    assert warning.getMessage() == f"{run.folder / FILE}, line 6 is damaged and is skipped: it is no note"
    client.post("note", json=NOTE | {"text": ""}, headers=OURS)
    assert [*read_notes(run)] == ["train/1/1-0/1"], "an empty note is deleted, and the line that was cut has ended"


def test_what_is_not_a_note_of_the_page_is_refused(client, tmp_path):
    foreign = [{}, {"Origin": "https://a.org"}, {"Origin": "null"}, {"Origin": "http://a.org", "Host": "a.org"}]
    answers = [client.post("note", json=NOTE, headers=headers) for headers in foreign]
    for body in ([], {"session": 3, "text": ""}, NOTE | {"text": MOST * "x"}):
        answers.append(client.post("note", json=body, headers=OURS))
    assert [answer.status_code for answer in answers] == [403, 403, 403, 400, 400, 400, 400]
    assert not (tmp_path / FILE).exists()


def test_nothing_but_the_page_and_its_data_is_served_and_only_with_the_key(client, server, tmp_path):
    (tmp_path / "secret.js").write_text("")
    assert client.get("view.html").status_code == 200 and client.get("view_data/index.js").status_code == 200
    for path in ("secret.js", "view_data/../secret.js", "view_data/%2e%2e/secret.js", "view_data/"):
        assert client.get(path).status_code == 404, path
    assert client.get(f"{ORIGIN}/view.html").status_code == 404


def test_a_note_that_cannot_be_written_is_one_sentence_for_the_page(client, tmp_path):
    (tmp_path / FILE).mkdir()
    error = client.post("note", json=NOTE, headers=OURS).json()["error"]
    assert "The note is not kept" in error and "cannot be written" in error and "fix:" in error
