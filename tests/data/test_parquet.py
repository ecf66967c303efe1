from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_mas.data.items import Item
from verl_mas.data.prepare import FILES, Prepared
from verl_mas.errors import DiskError


def test_a_disk_that_gets_full_leaves_the_earlier_files_whole(tmp_path, monkeypatch):
    def prepared(count: int) -> Prepared:
        test = [Item("the test", "0", "sums")]
        return Prepared([Item(f"{number}?", "1", "sums") for number in range(count)], test, test)

    prepared(2).write(tmp_path)

    def full(table, path):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(DiskError, match=r"train\.parquet cannot be written: No space left"):
        prepared(3).write(tmp_path)
    monkeypatch.undo()
    assert pq.read_table(tmp_path / FILES["train"]).num_rows == 2
