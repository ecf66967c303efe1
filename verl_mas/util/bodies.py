"""Bodies of requests and responses, which the other side may send without end."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request

Part = TypeVar("Part", str, bytes)


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


async def disconnected(request: Request) -> None:
    """Waits until the client of a request, whose body has been read, is gone."""
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
