"""`verl-mas completion`: the scripts offer the arguments that the parsers take."""

import shutil
import subprocess

import pytest
from commands import output_of

from verl_mas import cli
from verl_mas.cli.completion import SHELLS


def offered(script: str, *typed: str) -> set[str]:
    """The words that bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in ("verl-mas", *typed))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(typed)}; COMP_LINE=; _shtab_verl_mas"
    command = ["bash", "--norc", "-c", f'{script}\ncompopt() {{ :; }}\n{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"']
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_offers_commands_options_and_paths(shell, capsys, tmp_path, monkeypatch):
    text = output_of(capsys, "completion", shell)
    assert [name for name in [*cli.commands(), "template"] if name not in text] == []
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, check=True, text=True)
    if shell == "bash":
        (tmp_path / "my_run").mkdir()
        monkeypatch.chdir(tmp_path)
        assert offered(text, "data", "rows", "my.jsonl", "--te") == {"--template"}
        assert offered(text, "view", "my") == offered(text, "view", "my_run", "--out", "my") == {"my_run"}
