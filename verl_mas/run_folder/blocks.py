"""Files of lines in zstd, in blocks that can be listed without decompressing them.

A block is a skippable frame (RFC 8878) with an index, followed by a frame with lines. `zstd -dc FILE` prints the lines,
because every zstd reader skips skippable frames. A process that is killed can cut the last block of its file; a damaged
block loses only itself.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pyarrow

from verl_mas.errors import DataError
from verl_mas.run_folder.disk import append

LEVEL = 9
FRAME = struct.Struct("<II")  # start of a skippable frame: its magic number, and the size of the rest
MAGIC, TAG = 0x184D2A5D, b"mas2"
START = re.compile(re.escape(struct.pack("<I", MAGIC)) + b"(?s:....)" + TAG)
logger = logging.getLogger(__name__)


class Head(NamedTuple):
    """The start of the skippable frame, before the index."""

    tag: bytes
    checksum: int  # of the rest of the head and of the index, as stored
    index_size: int  # decompressed
    lines_checksum: int
    lines_stored: int
    lines_size: int  # decompressed


HEAD = struct.Struct("<4s5I")


@dataclass(frozen=True)
class Block:
    """A part of a file: `start` to `stop`, with its lines from `lines_at` on."""

    start: int
    stop: int
    lines_at: int
    index: bytes
    head: Head


def append_block(path: Path, lines: bytes, index: bytes) -> int:
    """Append a block in one write; return its size. Raises OSError, and has then added nothing."""
    block = block_of(lines, index)
    append(path, block)
    return len(block)


def block_of(lines: bytes, index: bytes) -> bytes:
    stored, listed = _deflated(lines), _deflated(index)
    head = Head(TAG, 0, len(index), zlib.crc32(stored), len(stored), len(lines))
    head = head._replace(checksum=_checksum(head, listed))
    return FRAME.pack(MAGIC, HEAD.size + len(listed)) + HEAD.pack(*head) + listed + stored


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the blocks whose index is intact, even if their lines are not, so that lost sessions are known. Other
    blocks are skipped with a warning."""
    with path.open("rb") as file:
        size, start = path.stat().st_size, 0
        while start < size:
            block = _block(file, start, size)
            if block is not None:
                yield block
                if block.stop <= size:
                    start = block.stop
                    continue
            file.seek(start + 1)
            tail = START.search(file.read())
            after = start + 1 + tail.start() if tail else size
            if block is None:
                what = "%s, bytes %d to %d are no whole block: all that one process wrote of a step is skipped"
                logger.warning(what, path, start, after)
            start = after


def lines_of(path: Path, block: Block) -> list[bytes]:
    """The lines of a block. Raises DataError if they are damaged."""
    with path.open("rb") as file:
        file.seek(block.lines_at)
        stored = file.read(block.head.lines_stored)
    if zlib.crc32(stored) != block.head.lines_checksum:
        rule = "the checksum of a block is that of its lines"
        fix = "copy the file again from where it was written; its other blocks can be read"
        raise DataError(f"{path}, the block at byte {block.start} is damaged", rule=rule, fix=fix)
    return _inflated(stored, block.head.lines_size).splitlines(keepends=True)


def _block(file: BinaryIO, start: int, size: int) -> Block | None:
    file.seek(start)
    read = file.read(FRAME.size + HEAD.size)
    if len(read) < FRAME.size + HEAD.size:
        return None
    (magic, length), head = FRAME.unpack_from(read), Head(*HEAD.unpack_from(read, FRAME.size))
    lines_at = start + FRAME.size + length
    stop = lines_at + head.lines_stored
    if magic != MAGIC or head.tag != TAG or lines_at > size:
        return None
    listed = file.read(length - HEAD.size)
    if head.checksum != _checksum(head, listed):
        return None
    return Block(start, stop, lines_at, _inflated(listed, head.index_size), head)


def _checksum(head: Head, listed: bytes) -> int:
    return zlib.crc32(listed, zlib.crc32(HEAD.pack(*head._replace(checksum=0))))


def _deflated(data: bytes) -> bytes:
    return cast(bytes, pyarrow.Codec("zstd", compression_level=LEVEL).compress(data, asbytes=True))


def _inflated(data: bytes, size: int) -> bytes:
    return cast(bytes, pyarrow.Codec("zstd").decompress(data, size, asbytes=True)) if size else b""
