import subprocess
import sys
from importlib.metadata import version

import pytest

from verl_mas import cli
from verl_mas.cli import doctor
from verl_mas.errors import ConfigError


def test_without_a_command_the_known_ones_are_listed(capsys):
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert cli.main(["docter"]) == 2
    assert "did you mean 'doctor'" in capsys.readouterr().err


def test_a_users_mistake_is_one_message_and_exit_code_1(monkeypatch, capsys):
    def refuse(argv):
        raise ConfigError("x=1", rule="x is 2", fix="set x=2")

    monkeypatch.setattr(doctor, "main", refuse)
    assert cli.main(["doctor"]) == 1
    assert "fix:  set x=2" in capsys.readouterr().err


def test_the_version_is_the_installed_one(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"verl-mas {version('verl-mas')}\n"


def test_the_package_can_be_run_as_the_command():
    command = [sys.executable, "-m", "verl_mas", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("verl-mas ")


def test_shared_modules_of_the_commands_are_not_commands():
    assert "check" in cli.commands() and not any(name.startswith("_") for name in cli.commands())


@pytest.mark.parametrize("command", cli.commands())
def test_every_command_has_a_summary_of_one_line(command):
    assert len(cli.summary(command)) > 10
