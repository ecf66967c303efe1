"""`verl-mas completion`: the scripts offer what the parsers take."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import shtab
from commands import output_of

from verl_mas import cli
from verl_mas.cli.completion import SHELLS, whole


@pytest.fixture(scope="module")
def bash() -> str:
    return shtab.complete(whole(), "bash")


def offered(bash: str, *typed: str) -> set[str]:
    """What bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in ("verl-mas", *typed))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(typed)}; COMP_LINE=; _shtab_verl_mas"
    command = ["bash", "--norc", "-c", f'{bash}\ncompopt() {{ :; }}\n{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("vi", {"view"}),
        ("--v", {"--version"}),
        ("view runs/a --st", {"--steps"}),
        ("data ro", {"rows"}),
        ("data rows my.jsonl --te", {"--template"}),
        ("retriever b", {"build"}),
        ("completion ", set(SHELLS)),
        ("nothing --vi", set()),
    ],
)
def test_bash_offers_what_may_follow(bash, typed, offers):
    assert offered(bash, *typed.split(" ")) == offers


def test_bash_offers_every_command_the_options_of_one_and_paths(bash, tmp_path, monkeypatch):
    assert set(cli.commands()) <= offered(bash, "")
    assert {"--help", "--out", "--force", "--steps"} <= offered(bash, "view", "--")
    assert {"rows", "split_clues", "puzzle"} <= offered(bash, "data", "")
    (tmp_path / "my_run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert offered(bash, "view", "my") == offered(bash, "view", "my_run", "--out", "my") == {"my_run"}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_has_every_command_and_is_one_of_its_shell(shell, capsys):
    text = output_of(capsys, "completion", shell)
    assert [name for name in [*cli.commands(), "template"] if name not in text] == []
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, check=True, text=True)


def test_a_shell_without_a_script_is_refused_with_those_that_have_one(capsys):
    error = output_of(capsys, "completion", "ksh", code=2)
    assert all(shell in error for shell in ("ksh", *SHELLS))
