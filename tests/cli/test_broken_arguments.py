"""A command with arguments sampled by type, some of them wrong, works or fails with a clear message. It never ends
in a traceback, and always ends."""

import contextlib
import io
import re
import sys
import tempfile
from argparse import Action
from pathlib import Path

import pytest
from broken import KINDS, MACHINES, MARKS, few, limited_memory, machine, make, many, time_limit
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from view_runs import session, write_metrics, write_run

from verl_mas import cli
from verl_mas.cli.completion import parsers
from verl_mas.cli.data import DATA_SETS

TIME_LIMIT = 90  # seconds
# Commands that train or make a model, that send requests to foreign servers, or that tests/checks fuzzes.
LEFT_OUT = "demo", "check", "plan", *(f"data {name}" for name in DATA_SETS)
COMMANDS = {name: own.options() for name, own in parsers() if not own.below and name not in LEFT_OUT}
# Options with which a command does not end by itself.
WITHOUT_END = ("--live",)
TEXTS = (*MARKS, "nothing", "/dev/null", "a=1", "=", "http://127.0.0.1:1/v1", "solver", "team.py:Team", "-1", "3-1")
NUMBERS = "-1", "0", "1", "2", "1e3", "nan", "x", "9" * 30


@st.composite
def commands(draw: DrawFn) -> tuple[list[str], dict[str, str]]:
    """Draw a command, and map each path that it names to a kind of `KINDS`, or to "run"."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    paths: dict[str, str] = {}
    optional = [action for action in COMMANDS[name] if action.option_strings and not action.required]
    chosen = draw(st.lists(st.sampled_from(optional), max_size=2, unique_by=id)) if optional else []
    words = name.split()
    for action in (action for action in COMMANDS[name] if action in chosen or action not in optional):
        words += _given(draw, action, paths)
    if draw(st.integers(0, 9)) == 0:
        words.append(draw(st.sampled_from(["--no-such-option", "--out", "one more", "--"])))
    return words, paths


def _given(draw: DrawFn, action: Action, paths: dict[str, str]) -> list[str]:
    option = list(action.option_strings[-1:])
    if set(option) & set(WITHOUT_END):
        return []
    if action.nargs == 0:
        return option
    if action.type is Path:
        name = f"p{len(paths)}{draw(st.sampled_from(['', '.parquet', '.jsonl']))}"
        paths[name] = draw(st.sampled_from([*KINDS, "run", "run"]))
        return [*option, "{folder}/" + KINDS.get(paths[name], "{}").format(name)]
    if action.choices:
        return [*option, draw(st.sampled_from([*map(str, action.choices), "x"]))]
    return [*option, draw(st.sampled_from(NUMBERS if action.type else TEXTS))]


def answered(drawn: tuple[list[str], dict[str, str]], here: tuple[list[float], int | None]) -> None:
    words, paths = drawn
    if words[0] == "doctor":
        # `doctor` starts a sandbox, and the limit would also apply to the sandbox's files in memory.
        here = here[0], None
    with tempfile.TemporaryDirectory() as name, limited_memory():
        folder = Path(name)
        for path, kind in paths.items():
            if kind == "run":
                write_metrics(write_run(folder / path, [session(), session(step=2, number=1)]))
            else:
                make(kind, folder / path)
        given_words = [word.replace("{folder}", name) for word in words]
        note(f"{given_words} {paths}")
        output = io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patched,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            time_limit(TIME_LIMIT),
        ):
            patched.chdir(folder)
            patched.setattr(sys, "stdin", io.StringIO())
            patched.setattr(sys, "path", [*sys.path])
            before = set(folder.rglob("*"))
            with machine(*here):
                code = cli.main(given_words)
        # No file that was cut by the full disk may be left, under any name.
        written = [path for path in {*folder.rglob("*")} - before if path.is_file()]
        assert not [path for path in written if path.stat().st_size == here[1]], output.getvalue()
    event(f"{words[0]}: {code}")
    assert code in (0, 1, 2) and "Traceback" not in output.getvalue(), output.getvalue()
    assert code == 0 or re.search("rule.*fix", output.getvalue(), re.DOTALL), output.getvalue()


@settings(few, max_examples=20)
@given(commands(), MACHINES)
def test_wrong_arguments_are_answered_clearly(drawn, here):
    answered(drawn, here)


@pytest.mark.nightly
@many
@given(commands(), MACHINES)
def test_many_wrong_arguments_are_answered_clearly(drawn, here):
    answered(drawn, here)
