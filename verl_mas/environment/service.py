"""Requests to a service on which sessions depend, such as a retriever or a sandbox. Temporary failures are repeated."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import httpx

from verl_mas.util.bodies import answered

T = TypeVar("T")


class ServiceFailed(Exception):
    """A response that the client cannot use. A repeated request would get the same response."""


class ServiceDown(ServiceFailed):
    """A temporary failure of the service; the request is worth repeating."""


async def posted(client: httpx.AsyncClient, url: str, question: object, seconds: float, most: int) -> bytes:
    """Post a question as JSON, and return the body of the response. Raises TooLong for a body of more than `most`
    bytes. `seconds` limits the whole request, because the time limit of httpx restarts with every byte."""
    try:
        status, body = await asyncio.wait_for(answered(client, "POST", url, most, json=question), seconds)
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise ServiceDown(f"no whole response in {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: empty label in the host
        raise ServiceDown(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    if status != 200:
        failure = ServiceDown if status == 429 or status >= 500 else ServiceFailed
        raise failure(f"HTTP {status}: {beginning(body)!r}")
    return body


async def repeated(request: Callable[[], Awaitable[T]], retries: int, backoff_s: float) -> T:
    """Make a request, and repeat it after temporary failures, up to `retries` times with a growing pause."""
    for attempt in range(retries):
        with suppress(ServiceDown):
            return await request()
        # The random factor keeps sessions whose requests failed together from repeating them together.
        await asyncio.sleep(backoff_s * 2**attempt * random.uniform(0.5, 1.5))
    return await request()


def beginning(body: bytes) -> str:
    return body[:200].decode(errors="replace")
