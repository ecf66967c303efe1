import errno
import os
from unittest.mock import Mock

import pytest

from verl_mas.run_folder.disk import append_line, write_whole


def fails_with(code: int) -> Mock:
    return Mock(side_effect=OSError(code, os.strerror(code)))


def test_a_file_has_its_former_text_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "pointer"
    write_whole(path, "2")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_with(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, "4")
    assert path.read_text() == "2" and [one.name for one in tmp_path.iterdir()] == ["pointer"]
    write_whole(path, "4")
    assert path.read_text() == "4" and [one.name for one in tmp_path.iterdir()] == ["pointer"]


def test_a_file_system_without_fsync_is_used_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fails_with(errno.EINVAL))
    write_whole(tmp_path / "pointer", "2")
    assert (tmp_path / "pointer").read_text() == "2"


def test_a_line_that_a_crash_has_cut_does_not_take_the_next_one_with_it(tmp_path):
    file = tmp_path / "a" / "lines"
    append_line(file, "one")
    with file.open("a") as cut:
        cut.write("tw")
    append_line(file, "three")
    append_line(file, "four")
    assert file.read_text() == "one\ntw\nthree\nfour\n"
