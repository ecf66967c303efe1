"""Print a script that completes commands, subcommands, options and their values in the shell.

  verl-mas completion bash > ~/.local/share/bash-completion/completions/verl-mas
  verl-mas completion zsh > ~/.zsh/completions/_verl-mas
  verl-mas completion fish > ~/.config/fish/completions/verl-mas.fish

For zsh the folder has to be in fpath before compinit. A new shell reads the file; after an upgrade, write it again.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_mas.cli import commands, module_of, summary
from verl_mas.cli._parser import Parser

SHELLS = ("bash", "zsh", "fish", "tcsh")


def parser() -> Parser:
    command = Parser("verl-mas completion", __doc__)
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    return command


def main(argv: list[str]) -> int:
    import shtab

    options = parser().parse_args(argv)
    sys.stdout.write(shtab.complete(whole(), options.shell))
    return 0


def whole() -> Parser:
    """The parser of `verl-mas`, with the parsers of its commands below it. The shell itself completes paths."""
    everything = Parser("verl-mas")
    everything.add_argument("--version", action="store_true", help="print the versions")
    below = everything.add_subparsers()
    for command, own in parsers():
        for action in own.options():
            if action.type is Path:
                vars(action)["complete"] = "file"  # shtab reads it
        if " " not in command:
            below.add_parser(command, help=summary(module_of(command)))
            below.choices[command] = own
    return everything


def parsers() -> Iterator[tuple[str, Parser]]:
    """Yield 'check', 'data', 'data rows', ... with their parsers, including data sets of installed packages."""
    for command in commands():
        own: Parser = importlib.import_module(module_of(command)).parser()
        yield command, own
        for name, below in own.below.items():
            yield f"{command} {name}", below
