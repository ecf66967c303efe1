"""Bodies of requests and responses, which the other side may send without end."""

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
    """A body beyond its limit; the rest of it is not read."""


async def bounded(parts: AsyncIterable[Part], most: int) -> AsyncIterator[Part]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise TooLong(f"a body of more than {most:,} bytes")
        yield part


async def whole(parts: AsyncIterable[bytes], most: int) -> bytes:
    """The body of a request. Raises TooLong."""
    return b"".join([part async for part in bounded(parts, most)])


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of the work for a request whose body has been read. When its client is gone, the work is cancelled and
    ClientDisconnect raised."""
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
    """The body of a response, which is being streamed; of an error's, at most its beginning. Raises TooLong."""
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
    """Status and body of a response."""
    async with client.stream(method, url, json=json) as response:
        return response.status_code, await body_of(response, most)
