"""Reads bodies of requests and responses with a limit, because the other side may send data without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request

Part = TypeVar("Part", str, bytes)
T = TypeVar("T")


class TooLong(Exception):
    """A body exceeds its limit. The rest of the body is not read."""


async def bounded(parts: AsyncIterable[Part], most: int) -> AsyncIterator[Part]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise TooLong(f"a body of more than {most:,} bytes")
        yield part


async def whole(parts: AsyncIterable[bytes], most: int) -> bytes:
    """Read the whole body of a request. Raises TooLong."""
    return b"".join([part async for part in bounded(parts, most)])


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work` for a request whose body has been read, and return the result. If the client disconnects, cancel the
    work and raise ClientDisconnect."""
    from starlette.requests import ClientDisconnect

    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def body_of(response: httpx.Response, most: int) -> bytes:
    """Read the body of a streamed response. Raises TooLong, except for an HTTP error, whose body is truncated."""
    body = bytearray()
    try:
        async for part in bounded(response.aiter_bytes(), most):
            body += part
    except TooLong:
        if not response.is_error:
            raise
    return bytes(body)


async def answered(
    client: httpx.AsyncClient, method: str, url: str, most: int, json: object = None
) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of the response."""
    async with client.stream(method, url, json=json) as response:
        return response.status_code, await body_of(response, most)
