"""The `verl-mas` command. Each module of this folder is a subcommand, with `main(argv) -> exit code`, but `_name`."""

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


def summary(command: str) -> str:
    """The first line of the module's docstring, read without importing it."""
    spec = importlib.util.find_spec(f"{__name__}.{command}")
    source = Path(str(spec and spec.origin)).read_text()
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def _usage() -> str:
    lines = [f"  {command:12} {summary(command)}" for command in commands()]
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
    # Modules in the current folder can be imported, as with `python -m verl.trainer.main_ppo`.
    sys.path.insert(0, os.getcwd())
    try:
        return int(importlib.import_module(f"{__name__}.{command}").main(rest))
    except MasError as error:
        sys.stderr.write(f"verl-mas {command}: {error}\n")
        return 1
