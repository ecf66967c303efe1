"""Parts that the commands share: the form of their errors, --out and --force, --json."""

import json

import pytest
from commands import output_of

from verl_mas import cli
from verl_mas.cli import export
from verl_mas.cli._arguments import add_address, add_out, add_run, add_settings, free, values, whole
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError, ConfigErrors, refused_path


def error(value: str) -> ConfigError:
    return ConfigError(value, rule="no", fix="yes")


AS_JSON = {"accepted": False, "errors": [{"value": value, "rule": "no", "fix": "yes"} for value in "ab"]}

DENIED = PermissionError(13, "Permission denied", "/a")


@pytest.fixture
def parser() -> Parser:
    made = Parser("verl-mas report", "Report on a run.\n\nMore words.")
    add_run(made)
    add_out(made, "the folder to write")
    made.add_argument("--step", type=whole(0), metavar="N")
    add_address(made, port=8000)
    add_settings(made, "--size", "settings of the boards")
    return made


def test_settings_do_not_take_the_commands_own_arguments(parser):
    options = parser.parse_args(["--size", "size=6", "boxes=1", "runs/a", "--size", "walls=0.5"])
    assert values(options.size) == {"size": 6, "boxes": 1, "walls": 0.5} and str(options.run) == "runs/a"
    with pytest.raises(ConfigError, match="the form is NAME=VALUE"):
        values(parser.parse_args(["--size=4", "runs/a"]).size)
    with pytest.raises(ConfigError, match="size=6, and size before"):
        values(parser.parse_args(["--size", "size=4", "size=6", "runs/a"]).size)


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ("", "missing: RUN", "verl-mas report --help"),
        ("runs/a --forse", "not known: --forse", "did you mean '--force'"),
        ("runs/a --fo", "not known: --fo", "--force"),
        ("runs/a --step two", "--step: 'two' is not a whole number at least 0", "--help"),
        ("runs/a --port 70000", "'70000' is not a whole number from 0 to 65535", "--help"),
        ("runs/a --step 1 --step=2", "--step is given twice", "--help"),
        ("runs/a --size", "--size: expected one argument", "--help"),
        ("runs/a --size --force", "--size: expected one argument", "--help"),
    ],
)
def test_wrong_arguments_name_the_value_the_rule_and_the_fix(parser, arguments, message, fix):
    with pytest.raises(UsageError) as refused:
        parser.parse_args(arguments.split())
    assert message in refused.value.value and fix in refused.value.fix
    assert refused.value.rule.startswith("the command is: verl-mas report")


@pytest.mark.parametrize("value", ["", " ", "a\0b", "a\nb", "\x1b[2J"])
def test_an_argument_that_is_empty_or_not_one_line_is_refused(parser, value):
    for arguments in (["--out", value], [f"--host={value}"], [value]):
        with pytest.raises(UsageError, match="is not one line of text"):
            parser.parse_args([*arguments, "runs/a"])


def test_help_has_the_defaults_and_keeps_paragraphs_apart(parser):
    text = parser.format_help()
    assert "Report on a run.\n\nMore words." in text and "(default: 8000)" in text and "(default: None)" not in text


def test_existing_files_are_kept_unless_forced(tmp_path):
    (tmp_path / "a").write_text("")
    assert free(tmp_path / "new", False) == tmp_path / "new"
    assert free(tmp_path / "a", True) == tmp_path / "a" and free(tmp_path, False, "b") == tmp_path
    kept, no_folder = "a exists", "a is a file, not a folder"
    for path, force, names, message in (
        (tmp_path / "a", False, (), kept),
        (tmp_path, False, ("b", "a"), kept),
        (tmp_path / "a" / "b", True, (), no_folder),
        (tmp_path / "a", True, ("b",), no_folder),
    ):
        with pytest.raises(ConfigError, match=message):
            free(path, force, *names)


def test_an_output_that_cannot_be_written_is_refused(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": 2}\n')
    small = ("--train-rows", "8", "--test-rows", "8")
    for words in (["new", "adders"], ["data", "rows", rows], ["data", "split_clues", *small]):
        out = "/proc/none.parquet" if rows in words else "/proc/none"
        error = output_of(capsys, *words, "--out", out, code=1)
        assert out in error and "cannot be written" in error, words


@pytest.mark.parametrize(
    ("raised", "options", "code", "out", "err"),
    [
        # Control characters in foreign text are escaped, so that a terminal does not obey them.
        (error("\x1b[2J"), [], 1, "", "verl-mas export: \\x1b[2J\n  rule: no\n  fix:  yes\n"),
        (ConfigErrors([error("a"), error("b")]), ["--json"], 1, f"{json.dumps(AS_JSON, indent=1)}\n", ""),
        (DENIED, [], 1, "", f"verl-mas export: {refused_path(DENIED)}\n"),
        (KeyboardInterrupt(), [], 130, "", "\nverl-mas export: interrupted\n"),
    ],
    ids=["refused", "json", "path", "interrupted"],
)
def test_a_refusal_and_an_interrupt_are_no_tracebacks(monkeypatch, capsys, raised, options, code, out, err):
    def fails(argv):
        raise raised

    monkeypatch.setattr(export, "main", fails)
    assert cli.main(["export", *options]) == code
    assert capsys.readouterr() == (out, err)
