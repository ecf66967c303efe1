import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from verl_mas import cli
from verl_mas.cli import doctor
from verl_mas.errors import ConfigError


def test_an_unknown_command_names_the_nearest(capsys):
    assert cli.main(["docter"]) == 2
    assert "did you mean 'doctor'" in capsys.readouterr().err


def test_a_users_mistake_is_one_message_and_exit_code_1(monkeypatch, capsys):
    def refuse(argv):
        raise ConfigError("x=1", rule="x is 2", fix="set x=2")

    monkeypatch.setattr(doctor, "main", refuse)
    assert cli.main(["doctor"]) == 1
    assert "fix:  set x=2" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_the_package_can_be_run_as_the_command_and_imports_nothing_heavy_for_it(argument):
    code = (
        "import sys; from verl_mas.cli import main; main(sys.argv[1:])\n"
        "assert not {'torch', 'verl', 'numpy', 'omegaconf', 'argparse'} & set(sys.modules)"
    )
    direct = subprocess.run([sys.executable, "-c", code, argument], check=True, capture_output=True, text=True).stdout
    command = [sys.executable, "-m", "verl_mas", argument]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == direct


def test_the_versions_are_the_installed_ones(capsys):
    assert cli.main(["--version"]) == 0
    packages = ("verl-mas", "verl", "torch")
    assert capsys.readouterr().out == "".join(f"{name} {version(name)}\n" for name in packages)


def test_every_command_is_in_one_group_of_the_help(capsys):
    grouped = [name for group in cli.GROUPS.values() for name in group]
    assert len(grouped) == len(set(grouped)) and set(cli.commands()) <= set(grouped)
    assert cli.main([]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    assert listed == [name for name in grouped if name in cli.commands()]


def test_every_command_has_a_parser_that_is_quick_to_make():
    """Help and completion call it. In a fresh interpreter: other tests have imported everything."""
    code = (
        "import sys, importlib; from verl_mas import cli\n"
        "for command in cli.commands():\n"
        "    made = importlib.import_module(cli.module_of(command)).parser()\n"
        "    assert made.prog == f'verl-mas {command}' and made.description, made.prog\n"
        "    heavy = {'torch', 'verl', 'transformers', 'ray'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", cli.commands())
def test_every_command_has_a_summary_of_one_line(command):
    assert len(cli.summary(command)) > 10
