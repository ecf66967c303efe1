"""The images of messages as files that are named by their content, each written once."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Protocol, cast
from uuid import uuid4

from verl_mas.run_folder.session_files import IMAGES, recording
from verl_mas.workflow.client import Message

# What the first bytes of a file say it is.
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"RIFF": "webp"}


class Picture(Protocol):
    """An image of PIL."""

    mode: str
    size: tuple[int, int]

    def tobytes(self) -> bytes: ...

    def save(self, file: BytesIO, format: str) -> None: ...


class ImageFiles:
    """Called with a part of a message that has an image, it returns the part that a record has instead."""

    def __init__(self, directory: Path):
        self.folder = directory / IMAGES
        self._bytes = 0
        self._known: set[str] = set()

    def __call__(self, part: Message) -> Message:
        image = _image_of(part)
        if isinstance(image, str):
            # A path or an address. What is behind it may change, and may be large.
            return {"type": "image", "url": image}
        if isinstance(image, bytes):
            kind = next((kind for start, kind in KINDS.items() if image.startswith(start)), "bin")
            return self._written(f"{_hash(image)}.{kind}", image)
        if image is None:
            return {"type": "image"}
        name = f"{_hash(f'{image.mode} {image.size}'.encode(), image.tobytes())}.png"
        return self._written(name, image)

    def pop_bytes(self) -> int:
        """What was written since the last call."""
        written, self._bytes = self._bytes, 0
        return written

    def _written(self, name: str, image: bytes | Picture) -> Message:
        path = self.folder / name
        if name not in self._known and not path.exists():
            content = image if isinstance(image, bytes) else _png(image)
            with recording(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                # Under a name of its own until it is whole: another worker may write the same image.
                new = path.with_name(f"{name}.{uuid4().hex[:8]}.new")
                new.write_bytes(content)
                new.replace(path)
            self._bytes += len(content)
        self._known.add(name)
        return {"type": "image", "file": f"{IMAGES}/{name}"}


def _image_of(part: Message) -> str | bytes | Picture | None:
    """The image in a part of a message, in the forms of verl and of OpenAI's protocol."""
    address = part.get("image_url")
    image = part.get("bytes") or part.get("image") or (address.get("url") if isinstance(address, Mapping) else address)
    if isinstance(image, str) and image.startswith("data:"):
        try:
            return base64.b64decode(image.partition(",")[2], validate=True)
        except binascii.Error:
            return None
    known = isinstance(image, str | bytes) or (hasattr(image, "tobytes") and hasattr(image, "mode"))
    return cast("str | bytes | Picture", image) if known else None


def _hash(*parts: bytes) -> str:
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def _png(image: Picture) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
