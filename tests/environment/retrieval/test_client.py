import asyncio
import json
import re

import httpx
import pytest

from verl_mas.environment.retrieval.client import Breaker, RetrieverClient, check_source, source
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.errors import ConfigError

URL = "http://retriever.test/retrieve"


class Server(httpx.AsyncBaseTransport):
    """A server that answers each query with the query. `plan` has the statuses or exceptions of the next requests."""

    def __init__(self, *plan: int | Exception, delay: float = 0.0):
        self.plan, self.delay = list(plan), delay
        self.batches: list[list[str]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        self.batches.append(asked["queries"])
        await asyncio.sleep(self.delay)
        fate = self.plan.pop(0) if self.plan else 200
        if isinstance(fate, Exception):
            raise fate
        documents = [{"id": f"{q}-0", "contents": f'"{q}"\nabout {q}'} for q in asked["queries"]]
        hits = [[{"document": document, "score": 1.0}] * asked["topk"] for document in documents]
        return httpx.Response(fate, json={"result": hits})


def client(server: httpx.AsyncBaseTransport, **options) -> RetrieverClient:
    return RetrieverClient(transport=server, **{"url": URL, "backoff_s": 0.0, **options})


async def ask(server: httpx.AsyncBaseTransport, *queries: str, **options):
    one = client(server, **options)
    return await asyncio.gather(*(one.search(query) for query in queries))


async def test_concurrent_queries_share_requests_and_get_their_own_answers():
    server = Server()
    found = await ask(server, *(f"q{i}" for i in range(100)), max_batch=64)
    assert [len(batch) for batch in server.batches] == [64, 36]
    expected = [Passage(f"q{i}-0", f"about q{i}", f"q{i}", 1.0) for i in range(100)]
    assert [result.passages[0] for result in found] == expected and source(URL) is source(URL)
    one = client(server)
    both = await asyncio.gather(one.search("a", topk=1), one.search("b", topk=5))
    assert [len(found.passages) for found in both] == [1, 5]


async def test_a_temporary_failure_is_retried_and_a_lasting_one_is_an_error_without_passages():
    for trouble in (503, 429, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")):
        (found,) = await ask(server := Server(trouble, trouble), "q")
        assert found.passages and len(server.batches) == 3
    for status, requests in ((503, 3), (422, 1)):
        (found,) = await ask(server := Server(*[status] * 9), "q")
        assert found.passages == () and URL in found.error and f"HTTP {status}" in found.error
        assert len(server.batches) == requests


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{}", "KeyError"),
        ('{"result": [[{"document": {"id": "x"}}]]}', "has no text"),
        ('{"result": []}', "0 results for 1 queries"),
        pytest.param("[" * 200_000, "RecursionError", id="deep"),
    ],
)
async def test_the_response_of_another_kind_of_server_is_an_error(body, says):
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=body))
    (found,) = await ask(transport, "q")
    assert says in found.error and not found.passages


async def test_the_password_of_a_retriever_is_in_no_message():
    private = "http://me:hunter2@127.0.0.1:9/retrieve?key=hunter2"
    shown = re.escape("http://127.0.0.1:9/retrieve: ConnectError")
    with pytest.raises(ConfigError, match=shown) as raised:
        check_source(private, topk=3)
    (found,) = await ask(Server(503), "q", url=private, retries=0)
    assert "hunter2" not in f"{raised.value} {found.error}" and "HTTP 503" in found.error
    with pytest.raises(ConfigError, match=re.escape("the retriever does not serve: http://[::1: ")):
        check_source("http://[::1", topk=3)


async def test_a_query_that_cannot_be_sent_or_is_cancelled_fails_alone():
    one = client(Server(delay=0.02))
    bad, cancelled, good = (asyncio.ensure_future(one.search(q)) for q in ("half a \ud83d pair", "a", "rome"))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    assert "cannot be sent" in (await bad).error and (await good).passages


async def test_after_any_exception_no_session_waits_and_the_breaker_allows_another_attempt():
    one = client(Server(RuntimeError("unforeseen"), RuntimeError()), breaker=Breaker(threshold=1, cooldown_s=0.0))
    first, second, third = [await asyncio.wait_for(one.search("q"), timeout=5) for _ in range(3)]
    assert "RuntimeError: unforeseen" in first.error and "RuntimeError" in second.error and third.passages


async def test_after_failures_the_breaker_sends_nothing_but_one_request_per_cooldown():
    now, server = 0.0, Server(*[503] * 4)
    one = client(server, retries=0, breaker=Breaker(threshold=3, cooldown_s=10, clock=lambda: now))
    found = [await one.search("q") for _ in range(9)]
    assert len(server.batches) == 3 and all("HTTP 503" in each.error for each in found)
    assert "circuit open" in found[-1].error
    for now, requests in ((11.0, 4), (22.0, 5)):  # noqa: B007  the clock reads `now`
        found = [await one.search("q")]
        assert len(server.batches) == requests
    assert found[0].passages and one.breaker.admits() and one.breaker.admits()


def test_the_start_check_asks_for_as_many_passages_as_the_run_will(monkeypatch):
    async def few(_, request):
        served = json.loads(await request.aread())["topk"] <= 100
        return httpx.Response(200, json={"result": [[]]}) if served else httpx.Response(422, text="topk")

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", few)
    check_source(URL, topk=100)
    with pytest.raises(ConfigError, match="HTTP 422: 'topk'"):
        check_source(URL, topk=1000)


async def test_a_response_is_limited_and_a_longer_one_is_not_requested_again(monkeypatch):
    monkeypatch.setattr("verl_mas.environment.retrieval.client.MAX_RESPONSE_BYTES", 10_000)
    asked = []
    flood = httpx.MockTransport(lambda request: asked.append(request) or httpx.Response(200, content=b"[" * 20_000))
    (found,) = await ask(flood, "q")
    assert "more than 10,000 bytes" in found.error and len(asked) == 1


def test_a_retriever_that_sends_a_byte_now_and_then_is_refused(trickling):
    with pytest.raises(ConfigError, match="no whole response in 1 s"):
        check_source(trickling, topk=3, timeout_s=0.5)
