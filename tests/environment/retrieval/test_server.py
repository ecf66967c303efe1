import threading
from pathlib import Path

import pytest

pytest.importorskip("tantivy")

import httpx
from starlette.testclient import TestClient

from verl_mas.environment.retrieval.client import check_source
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import build
from verl_mas.environment.retrieval.server import create_app
from verl_mas.errors import ConfigError


@pytest.fixture
def index(tmp_path):
    return build([Passage(f"p{i}", f"fact number {i} of many", f"Fact {i}") for i in range(20)], tmp_path / "i")


def ready(client: TestClient) -> TestClient:
    for _ in range(500):
        if client.get("/ready").status_code == 200:
            return client
    raise AssertionError("never ready")


@pytest.fixture
def client(index):
    return ready(TestClient(create_app(lambda: index, topk=2)))


def test_a_search_r1_request_gets_a_search_r1_response(client):
    """Send the request of Search-R1's generation.py, and read the answer as it does."""
    payload = {"queries": ["fact 3", "fact 4"], "topk": 3, "return_scores": True}
    result = client.post("/retrieve", json=payload).json()["result"]
    assert [len(hits) for hits in result] == [3, 3]
    content = result[0][0]["document"]["contents"]
    assert content.split("\n")[0] == '"Fact 3"' and content.split("\n")[1] == "fact number 3 of many"
    assert result[0][0]["score"] > result[0][1]["score"]
    documents = client.post("/retrieve", json={"queries": ["fact 3"]}).json()["result"]
    assert len(documents[0]) == 2 and documents[0][0]["id"] == "p3"


@pytest.mark.parametrize("queries", [0, 2560])
def test_a_request_may_have_no_queries_or_a_whole_batch_of_search_r1(client, queries):
    assert len(client.post("/retrieve", json={"queries": ["fact 3"] * queries}).json()["result"]) == queries


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"queries": ["half a \\ud83d pair"]}', 422),
        (b'{"queries": ["fact 3\\u0000"]}', 200),
        (b'{"queries": [%b"x"]}' % (b'"x", ' * 20_000), 422),
        (b"[" * 200_000, 422),
        (b'{"queries": ["x"], "topk": 101}', 422),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_malformed_request_is_an_error_of_the_client_whatever_it_holds(client, body, status):
    response = client.post("/retrieve", content=body)
    assert response.status_code == status
    assert len(response.content) < 10_000 and (status == 200 or response.json()["detail"])


def test_a_body_without_end_and_more_passages_than_a_response_should_hold_are_refused(client):
    sent = 0

    def endless():
        nonlocal sent
        while sent < 50_000_000:
            sent += 1_000_000
            yield b" " * 1_000_000

    assert client.post("/retrieve", content=endless()).status_code == 413
    response = client.post("/retrieve", json={"queries": ["fact 3"] * 4096, "topk": 100})
    assert response.status_code == 422 and "more than 200,000 passages" in response.json()["detail"]


def test_before_the_index_is_loaded_the_server_is_alive_but_not_ready(index, monkeypatch):
    loaded = threading.Event()

    def load():
        loaded.wait()
        return index

    client = TestClient(create_app(load))
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").status_code == 503
    with monkeypatch.context() as asking:
        through = httpx.ASGITransport(client.app)
        asking.setattr(
            httpx.AsyncHTTPTransport, "handle_async_request", lambda _, asked: through.handle_async_request(asked)
        )
        with pytest.raises(ConfigError, match=r"HTTP 503.*not loaded yet(.|\n)*wait until its /ready answers 200"):
            check_source("http://here/retrieve", topk=3)
    loaded.set()
    assert ready(client).get("/ready").json()["passages"] == 20


def test_a_failed_load_is_reported_by_ready_and_to_the_caller():
    told: list[BaseException] = []
    client = TestClient(create_app(Path("/no/such/disk").read_bytes, failed=told.append))
    while (answer := client.get("/ready").json())["error"] is None:
        pass
    assert "/no/such/disk" in answer["error"] and isinstance(told[0], FileNotFoundError)
