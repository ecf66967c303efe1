"""Every client of a broken server or network gets an error that names the address, or its answer. It never raises an
exception of a library, and never hangs."""

import asyncio
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from unittest.mock import patch

import pytest
from broken import CLOCKS, few, machine, many, time_limit
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.environment.execution.executor import Execution, Limits
from verl_mas.environment.execution.executors import sandbox_fusion
from verl_mas.environment.retrieval.client import RetrieverClient
from verl_mas.errors import ConfigError, ExecutorFailed, SessionFault
from verl_mas.gateway.streaming import ON_TEXT
from verl_mas.results.serve import endpoints

T = TypeVar("T")
TIME_LIMIT = 20  # seconds
PATIENCE_S = 0.2  # of each client
HEADS = {
    "json": b"Content-Type: application/json",
    "events": b"Content-Type: text/event-stream",
    "gzip": b"Content-Encoding: gzip",
    "chunked": b"Transfer-Encoding: chunked",
    "short": b"Content-Length: 5",
    "long": b"Content-Length: 999999",
    "wrong": b"Content-Length: x",
    "moved": b"Location: /v1",
    "odd": b"\xff\x00: \xff",
    "charset": b"Content-Type: application/json; charset=nothing",
}
STATUSES = b"200 OK|200|204 No|304 No|301 Moved|400 No|429 No|500 No|100 Go|999 x|x".split(b"|")
VALUES = None, True, -1, 1e308, float("nan"), "x", "\ud800", [], [None], {}, {"x": None}
SCALAR = re.compile(rb'"[^"]*"(?!:)|[\d.]+')
PROXIES = "nothing", "ftp://x", "socks5://127.0.0.1:1", *(f"http://127.0.0.1:{port}" for port in (1, 99999, "PORT"))
ENDS = "reset", "hang", "repeat", "trickle", "drop"
HOSTS = "127.0.0.1", "localhost", "nothing.invalid", "a..b", f"{'x' * 64}.invalid", "münchen.invalid", "0", "[::1]"


@dataclass(frozen=True)
class Network:
    """The parts of a server's answer, how its connections end, and the host name, proxy and clock of the client."""

    parts: Sequence[bytes]
    end: str = "close"
    host: str = "127.0.0.1"
    proxy: str | None = None
    shifts: Sequence[float] = (0.0,)


@st.composite
def bodies(draw: DrawFn, answer: object) -> bytes:
    """An answer with another value in one place, or a text that is not an answer."""
    text = dumped(answer)
    place = draw(st.sampled_from([*SCALAR.finditer(text)]))
    changed = text[: place.start()] + dumped(draw(st.sampled_from(VALUES))) + text[place.end() :]
    others = [b"", b"\xff", b"[" * 100_000, b"data: " + text + b"\n\n", b"data: {\n\n", text[: len(text) // 2]]
    return draw(st.just(changed) | st.sampled_from([*others, *map(dumped, VALUES)]))


@st.composite
def networks(draw: DrawFn) -> tuple[Callable[[str], None], Network]:
    """A client and its network. At most two parts of the network are broken."""
    client = draw(st.sampled_from(sorted(ANSWERS, key=lambda ask: ask.__name__)))
    answer = draw(st.sampled_from(ANSWERS[client]))
    broken = draw(st.lists(st.sampled_from("status heads body end host proxy".split()), max_size=2))

    def drawn(name: str, usual: T, others: SearchStrategy[T]) -> T:
        return draw(others) if name in broken else usual

    status = b"HTTP/1.1 " + drawn("status", b"200 OK", st.sampled_from(STATUSES))
    heads = drawn("heads", [], st.lists(st.sampled_from(sorted(HEADS)), min_size=1, max_size=2, unique=True))
    return client, Network(
        [
            b"\r\n".join([status, *(HEADS[name] for name in heads), b"", b""]),
            drawn("body", dumped(answer), bodies(answer)),
        ],
        drawn("end", "close", st.sampled_from(ENDS)),
        drawn("host", "127.0.0.1", st.sampled_from(HOSTS)),
        drawn("proxy", None, st.sampled_from(PROXIES)),
        draw(CLOCKS),
    )


def dumped(answer: object) -> bytes:
    return json.dumps(answer).encode()


class HostileServer:
    """Answers every connection in the same way."""

    def __init__(self, network: Network):
        self._parts, self._end = network.parts, network.end
        if self._end == "trickle":
            self._parts = [bytes([byte]) for part in self._parts for byte in part]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Wake the thread that accepts connections; closing alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=self._listener.accept()[:1], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self._end == "drop":
                return
            connection.recv(1 << 16)
            for part in self._parts:
                connection.sendall(part)
                time.sleep(0.02 * (self._end == "trickle"))
            while self._end == "repeat":
                connection.sendall(self._parts[-1] or b" ")
                time.sleep(0.001)
            if self._end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif self._end == "hang":
                while connection.recv(1 << 16):
                    pass


def session(url: str) -> None:
    """Run a session without and with a streamed reply."""
    faults = FaultSpec(retries=0, act_timeout_s=2 * PATIENCE_S)
    for on_text in (None, [].append):
        token = ON_TEXT.set(on_text)
        try:
            client = verl_mas.OpenAIClient(f"{url}/v1", "m", timeout=PATIENCE_S)
            played = verl_mas.run("single", "q", client, faults=faults)
            assert isinstance(played.answer, str) and played.seconds >= 0
            played.record()
        finally:
            ON_TEXT.reset(token)


def search(url: str) -> None:
    async def found() -> str | None:
        client = RetrieverClient(f"{url}/retrieve", timeout_s=PATIENCE_S, retries=0)
        try:
            return (await client.search("q")).error
        finally:
            await client.close()

    if problem := asyncio.run(found()):
        raise AssertionError(problem) if url not in problem else LookupError(problem)


def served(url: str) -> None:
    with patch.object(endpoints, "TIMEOUT_S", PATIENCE_S):
        (spec,) = endpoints.remotes({"main": url}, {"main": None}).values()
    assert spec.model == "main"


def execution(url: str) -> None:
    async def executed() -> None:
        executor = sandbox_fusion.SandboxFusion(Execution(executor="sandbox_fusion", url=url))
        try:
            await executor.execute("print(4)", limits=Limits(wall_s=PATIENCE_S))
        finally:
            await executor.aclose()

    with patch.object(sandbox_fusion, "MARGIN_S", PATIENCE_S), patch.object(sandbox_fusion, "RETRIES", 0):
        asyncio.run(executed())


MESSAGE = {"role": "assistant", "content": "4"}
ANSWERS: Mapping[Callable[[str], None], Sequence[object]] = {
    session: (
        {"choices": [{"message": MESSAGE, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}},
        {"choices": [{"index": 0, "delta": MESSAGE}]},
    ),
    search: ({"result": [[{"document": {"id": "1", "contents": "a"}, "score": 0.5}]]},),
    served: ({"data": [{"id": "main"}]},),
    execution: ({"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "4"}},),
}


@contextmanager
def without_names() -> Iterator[None]:
    """Let every name fail to resolve at once, as without a network."""
    found = socket.getaddrinfo

    def resolved(host: str | bytes | None, *more: object, **named: object) -> object:
        text = (host or b"").encode("idna") if isinstance(host, str) else host or b""
        if text.endswith(b"invalid") or b".." in text:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found(host, *more, **named)  # type: ignore[arg-type]

    with patch.object(socket, "getaddrinfo", resolved):
        yield


def answered(drawn: tuple[Callable[[str], None], Network]) -> None:
    ask, network = drawn
    server = HostileServer(network)
    url = f"http://{network.host}:{server.port}"
    proxy = {"http_proxy": network.proxy.replace("PORT", str(server.port)), "no_proxy": ""} if network.proxy else {}
    try:
        with time_limit(TIME_LIMIT), without_names(), patch.dict(os.environ, proxy), machine(network.shifts, None):
            ask(url)
        event(f"{ask.__name__}: answered")
    except (ConfigError, SessionFault, ExecutorFailed, LookupError) as error:
        event(f"{ask.__name__}: {type(error).__name__}")
        timed_out = isinstance(error, SessionFault) and error.kind.timed_out
        if not timed_out and url not in str(error) and "http_proxy" not in str(error):
            raise AssertionError(repr(error)) from error
    finally:
        server.close()


OK = b"HTTP/1.1 200 OK\r\n\r\n"
UNCOUNTED = dumped({"choices": [{"message": MESSAGE}], "usage": {"completion_tokens": "x"}})


@example((session, Network([OK.replace(b"OK", b"OK\r\n" + HEADS["gzip"]), b"{}"])))
@example((session, Network([OK, b"[" * 100_000])))
@example((session, Network([OK, UNCOUNTED])))
@example((session, Network([OK], host="a..b")))
@example((session, Network([OK], proxy="socks5://127.0.0.1:1")))
@example((served, Network([OK, b"[" * 100_000])))
@example((served, Network([OK], proxy="http://127.0.0.1:99999")))
@example((execution, Network([OK], host="a..b")))
@settings(few, max_examples=20)
@given(networks())
def test_a_broken_network_is_an_error_that_names_the_address(drawn):
    answered(drawn)


@pytest.mark.nightly
@many
@given(networks())
def test_many_broken_networks_are_errors_that_name_the_address(drawn):
    answered(drawn)
