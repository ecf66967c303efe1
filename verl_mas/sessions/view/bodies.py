"""Whole sessions, in chunks that the page loads one by one, and how data is embedded in it.

Data is gzip, then base64, so that no text of a model is HTML or JavaScript.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from verl_mas.run_folder.records import Record
from verl_mas.sessions.view.index import StepPart
from verl_mas.util.text import encodable

T = TypeVar("T")
# A chunk ends with the first session behind this size that ends its group; a large group is divided.
CHUNK_CHARS, GROUP_CHARS = 400_000, 3_000_000
IMAGE_BYTES = 2_000_000
# Of gzip. Higher levels take twice the time and save a tenth.
LEVEL = 4
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}


@dataclass
class Chunk:
    """Sessions of one step as JSON. A message of several prompts is stored once; sessions name its place."""

    messages: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    chars: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, record: Record, images: Path) -> None:
        task = {**record["task"], "messages": self._all(record["task"]["messages"], images)}
        acts = [
            {**act, "messages": self._all(act["messages"], images), "steps": self._all(act.get("steps") or [], images)}
            for act in record["acts"]
        ]
        self.sessions.append(as_json({**record, "task": task, "acts": acts}))
        self.chars += len(self.sessions[-1])

    def _all(self, messages: Sequence[Record], images: Path) -> list[int]:
        found = []
        for message in messages:
            content = message.get("content")
            parts = {"content": [_part(part, images) for part in content]} if isinstance(content, list) else {}
            text = as_json({**message, **parts})
            if text not in self._places:
                self._places[text] = len(self.messages)
                self.messages.append(text)
                self.chars += len(text)
            found.append(self._places[text])
        return found

    def text(self) -> str:
        return f'{{"messages":[{",".join(self.messages)}],"sessions":[{",".join(self.sessions)}]}}'


def chunks(part: StepPart, sessions: Sequence[Record], images: Path) -> Iterator[tuple[str, int, str]]:
    """The chunks of a step: name, number of sessions, text. The name changes with the text."""
    chunk, number = Chunk(), 0
    for place, record in enumerate(sessions):
        chunk.add(record, images)
        last = place + 1 == len(sessions)
        ends_group = last or sessions[place + 1]["uid"] != record["uid"]
        if last or (chunk.chars > CHUNK_CHARS and ends_group) or chunk.chars > GROUP_CHARS:
            text = chunk.text()
            mark = zlib.crc32(encodable(text).encode())
            yield f"{part.partition}-{part.step:06d}-{number}-{mark:08x}", len(chunk.sessions), text
            chunk, number = Chunk(), number + 1


def _part(part: Record, images: Path) -> Record:
    """An image with its bytes, if it is one of the run's own and not large; else only its name is shown."""
    name = part.get("file")
    if not isinstance(name, str):
        return part
    file = (images / name).resolve()
    kind = KINDS.get(file.suffix.lower())
    inside = file.is_relative_to(images.resolve())
    if kind is None or not inside or not file.is_file() or file.stat().st_size > IMAGE_BYTES:
        return part
    return {**part, "data": f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"}


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(encodable(text).encode(), LEVEL, mtime=0)).decode("ascii")


def unpacked(payload: str) -> str:
    return gzip.decompress(base64.b64decode(payload)).decode("utf-8")


def as_json(value: object) -> str:
    dumped = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    try:
        return dumped(value)
    except ValueError:
        return dumped(_finite(value))


def _finite(value: T) -> T:
    """The same value with each NaN and infinity as text: JSON has none, and a browser refuses the whole payload."""
    made: object = value
    if isinstance(value, float):
        made = value if math.isfinite(value) else str(value)
    elif isinstance(value, dict):
        made = {str(name): _finite(item) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        made = [_finite(item) for item in value]
    return made  # type: ignore[return-value]
