"""Run commands in this process."""

import pytest

from verl_mas import cli


def output_of(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    """Run `verl-mas WORDS` and return its output, and its errors as well if `code` is not 0."""
    assert cli.main([str(word) for word in words]) == code, capsys.readouterr()
    printed = capsys.readouterr()
    return printed.out + printed.err if code else printed.out
