"""What the commands share: the form of their errors, --out and --force, --json."""

from __future__ import annotations

import json
import sys

import pytest

from verl_mas import cli
from verl_mas.cli import export
from verl_mas.cli._arguments import add_address, add_out, add_run, add_settings, add_step, free, values
from verl_mas.cli._output import write_json
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError, ConfigErrors


@pytest.fixture
def parser() -> Parser:
    made = Parser("verl-mas report", "Report on a run.\n\nMore words.")
    add_run(made)
    add_out(made, "the folder to write")
    add_step(made)
    add_address(made, port=8000)
    add_settings(made, "--size", "settings of the boards")
    return made


def test_settings_do_not_take_the_commands_own_arguments(parser):
    options = parser.parse_args(["--size", "size=6", "boxes=1", "runs/a", "--size", "walls=0.5"])
    assert values(options.size) == {"size": 6, "boxes": 1, "walls": 0.5} and str(options.run) == "runs/a"


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ([], "missing: RUN", "verl-mas report --help"),
        (["runs/a", "--forse"], "not known: --forse", "did you mean '--force'"),
        (["runs/a", "--fo"], "not known: --fo", "--force"),
        (["runs/a", "--step", "two"], "--step: 'two' is not a whole number at least 0", "--help"),
        (["runs/a", "--port", "70000"], "'70000' is not a whole number from 0 to 65535", "--help"),
        (["runs/a", "--size"], "--size: expected one argument", "--help"),
        (["runs/a", "--size", "--force"], "--size: expected one argument", "--help"),
    ],
)
def test_wrong_arguments_name_the_value_the_rule_and_the_fix(parser, arguments, message, fix):
    with pytest.raises(UsageError) as refused:
        parser.parse_args(arguments)
    assert message in refused.value.value and fix in refused.value.fix
    assert refused.value.rule.startswith("the command is: verl-mas report")


def test_a_pair_without_an_equals_sign_is_refused_with_its_form(parser):
    with pytest.raises(ConfigError, match="the form is NAME=VALUE"):
        values(parser.parse_args(["--size=4", "runs/a"]).size)


def test_help_has_the_defaults_and_keeps_paragraphs_apart(parser):
    text = parser.format_help()
    assert "Report on a run.\n\nMore words." in text and "(default: 8000)" in text and "(default: None)" not in text


def test_what_exists_is_kept_unless_forced(tmp_path):
    (tmp_path / "a").write_text("")
    assert free(tmp_path / "new", False) == tmp_path / "new"
    assert free(tmp_path / "a", True) == tmp_path / "a" and free(tmp_path, False, "b") == tmp_path
    with pytest.raises(ConfigError, match="add --force to replace a"):
        free(tmp_path / "a", False)
    with pytest.raises(ConfigError, match="add --force to replace a"):
        free(tmp_path, False, "b", "a")
    with pytest.raises(ConfigError, match="a is a file, not a folder"):
        free(tmp_path / "a" / "b", True)
    with pytest.raises(ConfigError, match="a is a file, not a folder"):
        free(tmp_path / "a", True, "b")


def test_an_output_that_cannot_be_written_is_refused(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": 2}\n')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "metrics": {"critic/score/mean": 0.5}}\n')
    for command in (
        ["new", "adders", "--out", "/proc/none"],
        ["data", "rows", str(rows), "--out", "/proc/none.parquet"],
        ["data", "split_clues", "--out", "/proc/none", "--train-rows", "8", "--test-rows", "8"],
    ):
        assert cli.main(command) == 1
        assert "/proc/none" in (error := capsys.readouterr().err) and "cannot be written" in error, command


def test_text_of_others_in_an_error_is_no_order_to_a_terminal(monkeypatch, capsys):
    def refuse(argv):
        raise ConfigError("\x1b[2J\u202e", rule="no", fix="yes")

    monkeypatch.setattr(export, "main", refuse)
    assert cli.main(["export"]) == 1
    assert "\\x1b[2J\\u202e\n  rule: no" in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "main", interrupted)
    assert cli.main(["export"]) == 130
    assert capsys.readouterr().err == "\nverl-mas export: interrupted\n"


def test_a_refusal_is_json_where_json_is_asked_for(monkeypatch, capsys):
    errors = [ConfigError(name, rule="no", fix="yes") for name in "ab"]

    def refuse(argv):
        raise ConfigErrors(errors)

    monkeypatch.setattr(export, "main", refuse)
    assert cli.main(["export", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["errors"][1] == {"value": "b", "rule": "no", "fix": "yes"} and not printed.err


def test_wrong_usage_exits_with_2(capsys):
    assert cli.main(["export"]) == 2
    assert "missing: RUN, --out" in capsys.readouterr().err


def test_json_is_one_object(capsys):
    write_json({"path": sys.prefix, "steps": [1]})
    assert json.loads(capsys.readouterr().out) == {"path": sys.prefix, "steps": [1]}
