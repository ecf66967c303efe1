"""`verl-mas completion`: the scripts offer what the parsers take."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from verl_mas import cli
from verl_mas.cli.completion import SHELLS, offered, script


@pytest.fixture(scope="module")
def words() -> dict[str, list[str]]:
    return offered()


def in_bash(words: dict[str, list[str]], *typed: str) -> list[str]:
    """What bash offers for the last word of a line; readline adds file names if that is nothing."""
    line = " ".join(f"'{word}'" for word in ("verl-mas", *typed))
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(typed)}; _verl_mas; printf "%s\\n" "${{COMPREPLY[@]}}"'
    command = ["bash", "--norc", "-u", "-c", f"{script('bash', words)}\n{ask}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_every_command_and_every_data_set_is_offered(words):
    assert set(cli.commands()) <= set(words[""]) and {"--help", "--version"} <= set(words[""])
    assert {"rows", "split_clues", "puzzle"} <= set(words["data"])
    assert {f"data {name}" for name in words["data"] if not name.startswith("-")} <= set(words)


def test_the_options_are_those_of_the_parser(words):
    assert {"--help", "--out", "--force", "--steps", "--json"} <= set(words["view"])
    assert words["completion"] == [*SHELLS, "--help"]
    assert "--template" in words["data rows"]


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        (["vi"], ["view"]),
        (["--v"], ["--version"]),
        (["view", "runs/a", "--st"], ["--steps"]),
        (["view", ""], []),
        (["data", "ro"], ["rows"]),
        (["data", "rows", "my.jsonl", "--te"], ["--template"]),
        (["data", "rows", ""], []),
        (["retriever", "b"], ["build"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["nothing", "--"], []),
    ],
)
def test_bash_offers_what_may_follow(words, typed, offers):
    assert in_bash(words, *typed) == offers


def test_bash_offers_options_only_after_a_dash(words):
    assert in_bash(words, "") == cli.commands()
    assert set(in_bash(words, "view", "--")) == set(words["view"])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_have_the_same_words(words, shell):
    text = script(shell, words)
    assert "@" not in text
    for command, found in words.items():
        assert re.search(rf"'{command}'\)?\s+(?:set words |found=\(){' '.join(found)}\b", text), command
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, check=True, text=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_offers_what_may_follow(words):
    def offers(line: str) -> list[str]:
        ask = f"{script('fish', words)}\ncomplete -C '{line}'"
        return subprocess.run(["fish", "-N", "-c", ask], check=True, capture_output=True, text=True).stdout.split()

    assert offers("verl-mas vi") == ["view"]
    assert offers("verl-mas data ro") == ["rows"]
    assert offers("verl-mas view --st") == ["--steps"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_offers_what_may_follow(words):
    def offers(*typed: str) -> list[str]:
        """All that zsh chooses from; it compares them with what is typed itself."""
        stand_ins = "compdef() {}; compadd() { print -l -- ${@:#--} }; _files() { print FILES }"
        line = " ".join(f"'{word}'" for word in ("verl-mas", *typed))
        ask = f"words=({line}); CURRENT={len(typed) + 1}; PREFIX='{typed[-1]}'; _verl_mas"
        command = ["zsh", "-f", "-c", f"{stand_ins}\n{script('zsh', words)}\n{ask}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert offers("vi") == cli.commands()
    assert "rows" in offers("data", "ro")
    assert offers("view", "--") == [word for word in words["view"] if word.startswith("--")]
    assert offers("view", "") == ["FILES"]


def test_a_shell_without_a_script_is_refused_with_those_that_have_one(capsys):
    assert cli.main(["completion", "tcsh"]) == 2
    error = capsys.readouterr().err
    assert "tcsh" in error and all(shell in error for shell in SHELLS)


def test_the_command_prints_the_script(capsys, monkeypatch, words):
    monkeypatch.setattr("verl_mas.cli.completion.offered", lambda: words)
    assert cli.main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash", words)
