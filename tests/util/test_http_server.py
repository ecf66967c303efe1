"""A server whose clients connect and send nothing, or half of a request head."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from verl_mas.util import http_server

HALF = b"POST / HTTP/1.1\r\nX: "


async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(monkeypatch):
    """Start a server with at most 16 connections, each at most one second without a head, and yield its port."""
    monkeypatch.setattr(http_server.resource, "getrlimit", lambda kind: (64, 64))
    monkeypatch.setattr(http_server, "HEAD_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as listens:
        server = http_server.Server(app)
        running = asyncio.create_task(server.serve(sockets=[listens]))
        yield listens.getsockname()[1]
        server.should_exit = True
        await running


async def end_of(reader):
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


def test_connections_without_a_head_are_closed_and_their_number_has_a_limit(monkeypatch):
    asyncio.run(flooded(monkeypatch))


async def flooded(monkeypatch):
    async with serving(monkeypatch) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for _, writer in silent:
            writer.write(HALF)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"ok"), 10)
        # The same limit holds for the head of a later request.
        writer.write(HALF)
        assert [await end_of(reader) for reader, _ in [(reader, writer), *silent]] == [b""] * 61
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("grace", [5, 0])
def test_a_request_that_runs_has_the_time_of_grace_to_end(grace, monkeypatch):
    monkeypatch.setattr(http_server, "ON_ITS_WAY_S", 0.0)

    async def slow(scope, receive, send):
        if scope["type"] == "http":
            await asyncio.sleep(0.5)
            await app(scope, receive, send)

    async def ended():
        with socket.create_server(("127.0.0.1", 0)) as listens:
            server = http_server.Server(slow, grace=grace)
            running = asyncio.create_task(server.serve(sockets=[listens]))
            reader, writer = await asyncio.open_connection(*listens.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.2)
            server.should_exit = True
            found = await end_of(reader)
            writer.close()
            await running
            return found

    assert asyncio.run(ended()).endswith(b"ok") == (grace > 0)
