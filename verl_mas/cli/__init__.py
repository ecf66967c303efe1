"""The `verl-mas` command. A subcommand is a module of this folder with `main(argv) -> exit code`; `_name` is none."""

from __future__ import annotations

import ast
import importlib.util
import os
import pkgutil
import sys
from importlib.metadata import version
from pathlib import Path

from verl_mas.errors import MasError
from verl_mas.registry import nearest


def commands() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def _summary(command: str) -> str:
    """The first line of the module's docstring, read without importing it."""
    spec = importlib.util.find_spec(f"{__name__}.{command}")
    source = Path(str(spec and spec.origin)).read_text()
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def _usage() -> str:
    lines = [f"  {command:12} {_summary(command)}" for command in commands()]
    return "\n".join(["usage: verl-mas <command> [...] | --version", "", *lines])


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_usage() + "\n")
        return 0
    if argv[0] == "--version":
        sys.stdout.write(f"verl-mas {version('verl-mas')}\n")
        return 0
    command, *rest = argv
    if command not in commands():
        sys.stderr.write(f"verl-mas: no command {command!r}: {nearest(command, commands())}\n")
        return 2
    # As with `python -m verl.trainer.main_ppo`, modules in the current folder can be imported.
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(f"{__name__}.{command}").main(rest)
    except MasError as error:
        sys.stderr.write(f"verl-mas {command}: {error}\n")
        return 1
