import os
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from commands import output_of

from verl_mas import cli
from verl_mas.cli.completion import parsers

PACKAGES = ("verl-mas", "verl", "torch")


def test_an_unknown_command_names_the_nearest(capsys):
    assert "did you mean 'doctor'" in output_of(capsys, "docter", code=2)


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_the_package_can_be_run_as_the_command_and_imports_nothing_heavy_for_it(argument):
    code = (
        "import sys; from verl_mas.cli import main; main(sys.argv[1:])\n"
        "assert not {'torch', 'verl', 'numpy', 'omegaconf', 'argparse'} & set(sys.modules)"
    )
    direct = subprocess.run([sys.executable, "-c", code, argument], check=True, capture_output=True, text=True).stdout
    command = [sys.executable, "-m", "verl_mas", argument]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == direct
    assert argument == "--help" or direct == "".join(f"{name} {version(name)}\n" for name in PACKAGES)


def test_a_time_that_ray_cannot_read_is_refused_before_the_import_that_would_end_the_process(monkeypatch, capsys):
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "off")
    assert "RAY_memory_monitor_refresh_ms=off" in output_of(capsys, "list", code=1)


def test_output_to_a_closed_pipe_ends_quietly():
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "verl_mas", "--version"]
    done = subprocess.run(command, check=False, stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("columns", [40, 80])
def test_every_help_fits_80_columns_and_is_there_in_40(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    helps = {"": cli.usage(), **{name: parser.format_help() for name, parser in parsers()}}
    assert len(helps) > 20 and all(len(text) > 100 for text in helps.values())
    wide = {name: line for name, text in helps.items() for line in text.splitlines() if len(line) > 80}
    assert wide == {}


def test_every_command_is_in_one_group_of_the_help_with_a_summary_of_one_line(capsys, monkeypatch):
    grouped = [name for group in cli.GROUPS.values() for name in group]
    modules = [module.name for module in pkgutil.iter_modules(cli.__path__) if module.name[0] != "_"]
    assert sorted(grouped) == cli.commands() == sorted(name.rstrip("_").replace("_", "-") for name in modules)
    monkeypatch.setenv("COLUMNS", "500")
    listed = re.findall(r"^  ([\w-]+)  +(.*)", output_of(capsys), re.MULTILINE)
    assert listed == [(name, cli.summary(cli.module_of(name))) for name in grouped]
    assert all(len(summary) > 10 for _, summary in listed)


def test_every_command_has_a_parser_that_is_quick_to_make():
    """Help and completion make every parser. The test uses a new interpreter, because other tests have imported
    everything in this one."""
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
