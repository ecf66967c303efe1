"""Blocks of lines: what was written is read, and damage costs no other block."""

import contextlib

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_mas.errors import DataError
from verl_mas.run_folder.blocks import append_block, block_of, blocks_of, lines_of

LINE = st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"") + b"\n")
LINES = st.lists(LINE, max_size=5)
CONTENTS = st.lists(st.tuples(LINES, st.binary(max_size=50)), min_size=1, max_size=4)

# Machines that run tests are loaded.
LOADED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks") / "file.jsonl.zst"


def whole(path):
    """The index and the lines of each block that can be read."""
    found = []
    for block in blocks_of(path):
        with contextlib.suppress(DataError):
            found.append((lines_of(path, block), block.index))
    return found


@given(CONTENTS)
@LOADED
def test_blocks_are_read_as_they_were_appended(path, contents):
    path.unlink(missing_ok=True)
    sizes = [append_block(path, b"".join(lines), index) for lines, index in contents]
    assert whole(path) == contents
    assert sum(sizes) == path.stat().st_size


@given(CONTENTS, st.data())
@LOADED
def test_a_cut_and_a_byte_that_changed_cost_their_block_and_no_other(path, contents, data):
    blocks = [block_of(b"".join(lines), index) for lines, index in contents]
    path.write_bytes(b"".join(blocks)[: -data.draw(st.integers(1, len(blocks[-1])))])
    assert whole(path) == contents[:-1]
    number = data.draw(st.integers(0, len(blocks) - 1))
    place = data.draw(st.integers(0, len(blocks[number]) - 1))
    damaged = bytearray(blocks[number])
    damaged[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(b"".join([*blocks[:number], bytes(damaged), *blocks[number + 1 :]]))
    others = [*contents[:number], *contents[number + 1 :]]
    assert whole(path) == others


def test_other_programs_read_the_lines(path):
    path.write_bytes(block_of(b"a\nb\n", b"index") + block_of(b"c\n", b"index"))
    with pyarrow.input_stream(str(path), compression="zstd") as file:
        assert file.read() == b"a\nb\nc\n"


def test_lines_are_not_inflated_to_list_a_file(path, monkeypatch):
    path.write_bytes(block_of(b"x" * 100_000 + b"\n", b"1"))
    inflated = []
    monkeypatch.setattr("verl_mas.run_folder.blocks._inflated", lambda data, size: inflated.append(size) or b"")
    assert len(list(blocks_of(path))) == 1 and inflated == [1]
