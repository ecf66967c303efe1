"""Writes records of a worker's sessions to disk. It selects the sessions, compresses the files, and limits their space.

A session is written when it ends, as a line of a plain file, so a killed process loses at most the end of the line
that it was writing. When the step has ended, or the plain file has become large, the lines of the file are compressed
together, because separately compressed lines would take several times the space.

If only a part of the sessions is sampled, sessions with faults and the best and the worst session of each group are
recorded in addition. The best and the worst session are known only when the group has ended. Until then, the worker
keeps in memory the sessions that were not sampled. One worker runs all sessions of a group, so it can compare them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from io import BytesIO
from itertools import count
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar, cast
from uuid import uuid4

from verl_mas.config.schema import TrajectorySpec
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.images import source_of
from verl_mas.run_folder.disk import append, size_of
from verl_mas.run_folder.records import Listed, Record, left_out, listed, packed
from verl_mas.run_folder.session_files import FOLDER, IMAGES, compress, file_of, partition_of, recording
from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.client import Message
from verl_mas.workflow.record import Recording, TokenTexts
from verl_mas.workflow.session import Session, SessionResult
from verl_mas.workflow.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
P = ParamSpec("P")
Rank: TypeAlias = tuple[float, float, int]
GIB = 2**30
# Size at which a plain file is compressed. To read a session, its whole file is decompressed.
LARGE = 4 * 2**20
# Smallest group whose best and worst session are recorded. In smaller groups, every session is the best or the worst.
SMALLEST_GROUP = 3


def folder_of(spec: TrajectorySpec, default_local_dir: str) -> Path:
    return Path(spec.dir) if spec.dir else Path(default_local_dir) / FOLDER


class TrajectoryWriter:
    """Writes the sessions of one of `workers` workers. Threads may share a writer. `tokens` maps policies to functions
    that decode single tokens."""

    def __init__(
        self,
        spec: TrajectorySpec,
        directory: str | Path,
        attempt: str,
        workers: int = 1,
        tokens: Mapping[str, TokenTexts] = MappingProxyType({}),
    ):
        self._spec, self._directory, self._attempt = spec, Path(directory), attempt
        self._worker, self._numbers = uuid4().hex[:8], count()
        self._space = Space(spec.max_gib, self._directory, workers)
        self._images = ImageFiles(self._directory)
        self._how = Recording(spec.max_text_chars, self._images, tokens if spec.tokens else {})
        # For each session of a group, its rank (`_rank`), and the session itself if it has not been recorded yet.
        self._groups: dict[str, dict[Rank, SessionResult | None]] = defaultdict(dict)
        # The plain files that are not compressed yet, each with the entries of its sessions. Key: (validation?, step).
        self._open: dict[tuple[bool, int], tuple[Path, list[Listed]]] = {}
        self._written = SessionCounts()
        self._lock = threading.Lock()
        # Use a single thread. In the pool of the loop, each thread would get its own growing memory arena.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-records")

    async def in_thread(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run one of the methods below in the writer's thread, so that a slow disk does not block sessions."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given, **named))

    def write(self, finished: SessionResult, status: str) -> None:
        """Record a session if it is sampled or has faults; keep it until `end_group` otherwise. `status`: finished or
        dropped. Raises DiskError when the disk is full."""
        task = finished.session.task
        with self._lock:
            sampled = _draw(task) < self._spec.sampling_rate * self._space.rate
            recorded = sampled or bool(finished.faults)
            if recorded:
                self._record(finished, status)
            if not finished.failed:
                self._groups[task.uid][_rank(finished.session)] = None if recorded else finished

    def end_group(self, uid: str) -> None:
        """Record the best and the worst session of a task whose sessions have all ended."""
        with self._lock:
            group = self._groups.pop(uid, {})
            extremes = [min(group), max(group)] if len(group) >= SMALLEST_GROUP else []
            for rank, waiting in sorted(group.items(), key=itemgetter(0)):
                if waiting is not None and rank in extremes:
                    self._record(waiting, "finished")
                elif waiting is not None:
                    self._leave_out(waiting.session.task)

    def compress(self) -> SessionCounts:
        """Compress the plain files, unless the format is `jsonl`. Return the counts since the last call."""
        with self._lock:
            for key in [*self._open]:
                self._compress(*key)
            written, self._written = self._written, SessionCounts()
            return written

    def _record(self, finished: SessionResult, status: str) -> None:
        record = finished.session.record(status, finished.faults, self._how)
        line, task = packed(record), finished.session.task
        if self._space.takes(len(line)):
            self._append(line, record, task)
        else:
            self._written += SessionCounts(without_space=1)
            self._leave_out(task)

    def _leave_out(self, task: Task) -> None:
        record = left_out(task.uid, task.session, task.step, partition_of(task.validate))
        self._append(packed(record), record, task)

    def _append(self, line: bytes, record: Record, task: Task) -> None:
        key = task.validate, task.step
        path, entries = self._open.get(key) or (self._new_path(task), [])
        with recording(path):
            append(path, line)
        entries.append(listed(record))
        self._open[key] = path, entries
        self._count(len(line) + self._images.pop_bytes())
        if path.stat().st_size >= LARGE:
            self._compress(*key)

    def _new_path(self, task: Task) -> Path:
        worker = f"{self._worker}_{next(self._numbers):06d}"
        return file_of(self._directory, task.validate, task.step, self._attempt, worker)

    def _compress(self, validate: bool, step: int) -> None:
        path, entries = self._open.pop((validate, step))
        if self._spec.format == "zst":
            with recording(path):
                self._count(compress(path, entries))

    def _count(self, size: int) -> None:
        self._space.used += size
        self._written += SessionCounts(record_bytes=size)


class Space:
    """Disk space for the records of one worker. The rest of `max_gib` that the folder does not use yet is divided
    equally among all `workers`."""

    def __init__(self, max_gib: float | None, directory: Path, workers: int):
        there = size_of(directory) if max_gib else 0
        self.limit = max(0.0, max_gib * GIB - there) / workers if max_gib else math.inf
        self.used = 0

    @property
    def rate(self) -> float:
        """Factor of the sampling rate: 1 until half of the space is used, then halved whenever half of the rest is
        used.

        So the space lasts for long runs, and late steps are recorded, too.
        """
        left = 1 - self.used / self.limit if self.limit else 0.0
        return 2.0 ** math.ceil(math.log2(left)) if left > 0 else 0.0

    def takes(self, size: int) -> bool:
        return self.used + size <= self.limit


def _draw(task: Task) -> float:
    """Return a pseudo-random number from 0 to 1. It is the same in every run, and does not depend on the order in which
    sessions end."""
    return zlib.crc32(f"{task.extra_info.get('index')}/{task.step}/{task.session}".encode()) / 2**32


def _rank(session: Session) -> Rank:
    """Return the sort key of a session: the team's reward, then the rewards of its acts, then its number. So a group of
    sessions with equal rewards also has a best and a worst session, which are recorded."""
    own = sum((reply.team_reward or 0.0) + reply.local_reward for reply in session.replies if not reply.probe)
    return session.team_reward or 0.0, own, session.task.session


# First bytes of a file -> its format.
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"RIFF": "webp"}


class ImageFiles:
    """Writes the images in records to files. Calling it with a message part that has an image writes the image, and
    returns the part for the record."""

    def __init__(self, directory: Path):
        self.folder = directory / IMAGES
        self._bytes = 0
        self._known: set[str] = set()

    def __call__(self, part: Message) -> Message:
        image = _image_of(part)
        if isinstance(image, str):
            # Record a path or URL without its content, which may change and may be large.
            return {"type": "image", "url": image}
        if isinstance(image, bytes):
            kind = next((kind for start, kind in KINDS.items() if image.startswith(start)), "bin")
            return self._written(f"{_hash(image)}.{kind}", image)
        if image is None:
            return {"type": "image"}
        name = f"{_hash(f'{image.mode} {image.size}'.encode(), image.tobytes())}.png"
        return self._written(name, image)

    def pop_bytes(self) -> int:
        """Return the bytes that were written since the last call."""
        written, self._bytes = self._bytes, 0
        return written

    def _written(self, name: str, image: bytes | Image) -> Message:
        path = self.folder / name
        if name not in self._known and not path.exists():
            content = image
            if not isinstance(content, bytes):
                content.save(file := BytesIO(), "PNG")
                content = file.getvalue()
            with recording(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                # Write to a temporary name, because another worker may write the same image, and a kill may leave half
                # a file.
                new = path.with_name(f"{name}.{uuid4().hex[:8]}.new")
                try:
                    new.write_bytes(content)
                    new.replace(path)
                finally:
                    new.unlink(missing_ok=True)
            self._bytes += len(content)
        self._known.add(name)
        return {"type": "image", "file": f"{IMAGES}/{name}"}


def _image_of(part: Message) -> str | bytes | Image | None:
    """Return the image of a message part, decoded if it is a data URL."""
    image = source_of(part)
    if isinstance(image, str) and image.startswith("data:"):
        try:
            return base64.b64decode(image.partition(",")[2], validate=True)
        except binascii.Error:
            return None
    known = isinstance(image, str | bytes) or (hasattr(image, "tobytes") and hasattr(image, "mode"))
    return cast("str | bytes | Image", image) if known else None


def _hash(*parts: bytes) -> str:
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


# Decoders return this character for bytes that are not a whole character yet.
INCOMPLETE = "\ufffd"
# Bytes of the longest character in UTF-8. If a text is incomplete after this number of tokens, its bytes are not valid
# UTF-8.
MOST_BYTES = 4


class TextPerToken:
    """Decode tokens one by one: `texts(ids)` returns one string per token. Joined, they are the text of all tokens.

    If a character consists of several tokens, the last of these tokens gets its text. The texts of single tokens are
    kept, so most tokens are decoded only once per worker.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # Some decoders drop a space at the start of a text, so another token is put before each text and cut off again.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._prefix = len(tokenizer.decode(self._before))

    def __call__(self, ids: Sequence[int]) -> list[str]:
        texts: list[str] = []
        open_ids: list[int] = []
        for token in ids:
            open_ids.append(int(token))
            text = self._one(open_ids[0]) if len(open_ids) == 1 else self._decoded(open_ids)
            if text.endswith(INCOMPLETE) and len(open_ids) < MOST_BYTES:
                texts.append("")
                continue
            texts.append(text)
            open_ids = []
        if open_ids:
            texts[-1] = self._decoded(open_ids)
        return texts

    def _one(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decoded([token])
        return self._known[token]

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([*self._before, *ids])[self._prefix :]
