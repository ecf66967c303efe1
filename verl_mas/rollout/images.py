"""Images in messages: files, bytes and data URLs become Pillow images, the input of processors."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx

from verl_mas.errors import RequestError
from verl_mas.util.bodies import TooLong, answered
from verl_mas.workflow.client import Message, Request

if TYPE_CHECKING:
    from PIL.Image import Image

TEXT, IMAGES = "text", ("image", "image_url")
LONGEST = 200  # maximum ratio of the longer side to the shorter side; Qwen's processors have the same limit
MOST_PIXELS = 50_000_000  # 150 MB of memory in RGB; models get far fewer pixels
WEB = ("http://", "https://")
WEB_S, WEB_BYTES = 60.0, 64 << 20


async def with_images(request: Request, *, reads: bool) -> Request:
    """Load the new images of a request. If its model reads text only (`reads` is False), a request with media is
    refused."""
    known = request.continues.known if request.continues else 0
    kinds = {part.get("type") for message in request.messages[known:] for part in _parts(message)} - {TEXT}
    if not kinds:
        return request
    if not reads:
        rule = "the model of its policy reads text"
        fix = "give the agent a policy with a vision-language model, or send it text"
        raise RequestError(f"a message with a part of type {sorted(map(str, kinds))[0]}", rule=rule, fix=fix)
    budget = PixelBudget()
    new = [await _with_images(message, budget) for message in request.messages[known:]]
    return replace(request, messages=[*request.messages[:known], *new])


async def _with_images(message: Message, budget: PixelBudget) -> Message:
    parts = list(message["content"]) if _parts(message) else []
    for place, part in enumerate(parts):
        if isinstance(part, dict) and part.get("type") in IMAGES:
            # Download images on the web here, because verl would wait for them without a time limit.
            here = {**part, "image": await _file_at(part["image"])} if _on_web(part) else part
            parts[place] = await asyncio.to_thread(loaded, here, budget)
    return {**message, "content": parts} if parts else message


async def _file_at(address: str) -> bytes:
    status: int | str
    try:
        async with httpx.AsyncClient(follow_redirects=True, timeout=WEB_S) as client:
            status, body = await asyncio.wait_for(answered(client, "GET", address, WEB_BYTES), WEB_S)
    except (httpx.HTTPError, httpx.InvalidURL, TooLong, TimeoutError, asyncio.TimeoutError) as error:
        status, body = f"{type(error).__name__} {error}".strip(), b""
    if status != httpx.codes.OK:
        rule = f"an address of the data is answered within {WEB_S:g} s, with at most {WEB_BYTES >> 20} MiB"
        fix = "download the images once, and write their files or bytes into the data"
        raise RequestError(f"the image at {address:.200}: {status}", rule=rule, fix=fix)
    return body


def _on_web(part: Message) -> bool:
    return isinstance(image := part.get("image"), str) and image.startswith(WEB)


def images_of(messages: Sequence[Message]) -> list[object]:
    """The images in messages that `with_images` has loaded."""
    return [part["image"] for part in image_parts(messages)]


def image_parts(messages: Sequence[Message]) -> list[Message]:
    return [part for message in messages for part in _parts(message) if part.get("type") in IMAGES]


def _parts(message: Message) -> list[Message]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


class PixelBudget:
    """The number of pixels that the images of a request may still have. A file of 27 kB can unpack to 180 million
    pixels."""

    def __init__(self) -> None:
        self._left = MOST_PIXELS

    def take(self, width: int, height: int) -> None:
        self._left -= width * height
        if self._left < 0:
            rule = f"the images of a request have at most {MOST_PIXELS:,} pixels"
            raise RequestError(f"an image of {width} x {height} pixels", rule=rule, fix="send smaller or fewer images")


def loaded(part: Message, budget: PixelBudget | None = None) -> Message:
    """Load the image of a part, unless it is on the web. Raises RequestError if the image cannot be read."""
    if part.get("type") not in IMAGES or _on_web(part):
        return part  # a check downloads nothing; in a session, the image has been downloaded before this call
    kept = {name: value for name, value in part.items() if name not in ("bytes", "image_url")}
    image = _opened(source_of(part), budget or PixelBudget(), files="image" in part)
    return {**kept, "type": "image", "image": _rgb(image)}


def source_of(part: Message) -> object:
    """Return the image of a part, which has verl's form or the form of OpenAI's protocol."""
    address = part.get("image_url")
    return part.get("bytes") or part.get("image") or (address.get("url") if isinstance(address, Mapping) else address)


def _opened(source: object, budget: PixelBudget, *, files: bool) -> Image:
    """Open an image. `files`: whether `source` may be a file path. A client's image_url must not read local files."""
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    name = repr(source[:60] if isinstance(source, str | bytes) else source)
    try:
        if isinstance(source, str) and source.startswith("data:"):
            source = base64.b64decode(source.partition(",")[2], validate=True)
        elif not isinstance(source, bytes) and not (files and isinstance(source, str)):
            rule = "an image_url is a data URL, and an image is a path, bytes, or an image of Pillow"
            raise RequestError(f"the image {name}", rule=rule, fix="send data:image/png;base64,...")
        opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else str(source).removeprefix("file://"))
        budget.take(*opened.size)  # before any pixel is decoded
        opened.load()
    # Pillow's readers may raise any of these errors for a broken file, and DecompressionBombError for an image of
    # about 180 million pixels or more.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, RequestError):
            raise
        value = f"the image {name}: {str(error).partition(' <_io')[0]:.120}"
        raise RequestError(value, rule="Pillow reads it", fix="send a whole PNG or JPEG") from error
    return opened


def _rgb(image: Image) -> Image:
    """Convert an image to RGB. Its transparent parts become white."""
    from PIL import Image as images

    width, height = image.size
    if max(width, height) > LONGEST * min(width, height):
        rule = f"the longer side is at most {LONGEST} times the shorter one"
        raise RequestError(f"an image of {width} x {height} pixels", rule=rule, fix="cut it, or add a margin")
    if "A" not in image.getbands():
        return image.convert("RGB")
    white = images.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white
