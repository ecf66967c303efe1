"""The parsers of all commands, for completion and docs/cli.md."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from verl_mas.cli import commands, module_of
from verl_mas.cli._parser import Parser


def parsers() -> Iterator[tuple[str, Parser]]:
    """'check', 'data', 'data rows', ... with their parsers; also the data sets of installed packages."""
    for command in commands():
        made: Parser = importlib.import_module(module_of(command)).parser()
        yield command, made
        for name, below in made.subcommands().items():
            yield f"{command} {name}", below
