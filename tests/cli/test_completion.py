"""`verl-mas completion`: the scripts offer what the parsers take."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import shtab

from verl_mas import cli
from verl_mas.cli.completion import SHELLS, whole


@pytest.fixture(scope="module")
def bash() -> str:
    return shtab.complete(whole(), "bash")


def offered(bash: str, *typed: str) -> list[str]:
    """What bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in ("verl-mas", *typed))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(typed)}; COMP_LINE=; _shtab_verl_mas"
    command = ["bash", "--norc", "-c", f'{bash}\ncompopt() {{ :; }}\n{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        (["vi"], {"view"}),
        (["--v"], {"--version"}),
        (["view", "runs/a", "--st"], {"--steps"}),
        (["data", "ro"], {"rows"}),
        (["data", "rows", "my.jsonl", "--te"], {"--template"}),
        (["retriever", "b"], {"build"}),
        (["completion", ""], set(SHELLS)),
        (["nothing", "--vi"], set()),
    ],
)
def test_bash_offers_what_may_follow(bash, typed, offers):
    assert set(offered(bash, *typed)) == offers


def test_bash_offers_every_command_and_the_options_of_one(bash):
    assert set(cli.commands()) <= set(offered(bash, ""))
    assert {"--help", "--out", "--force", "--steps"} <= set(offered(bash, "view", "--"))
    assert {"rows", "split_clues", "puzzle"} <= set(offered(bash, "data", ""))


def test_bash_completes_paths(bash, tmp_path, monkeypatch):
    (tmp_path / "my_run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert offered(bash, "view", "my") == ["my_run"]
    assert offered(bash, "view", "my_run", "--out", "my") == ["my_run"]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_has_every_command_and_is_one_of_its_shell(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert [name for name in [*cli.commands(), "template"] if name not in text] == []
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, check=True, text=True)


def test_a_shell_without_a_script_is_refused_with_those_that_have_one(capsys):
    assert cli.main(["completion", "ksh"]) == 2
    error = capsys.readouterr().err
    assert "ksh" in error and all(shell in error for shell in SHELLS)
