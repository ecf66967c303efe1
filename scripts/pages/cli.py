"""Generate docs/start/cli.md, with every command and its arguments, from the parsers that read the arguments.

The page is not made from argparse's help texts, because they depend on the terminal and on Python's version.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pages.markdown import plain
from verl_mas.cli import GROUPS
from verl_mas.cli._parser import Parser, with_default
from verl_mas.cli.completion import parsers

HEAD = """\
# Commands

`verl-mas --help` lists the commands, and `--help` after a command describes it; `python -m verl_mas` is the same
program where `verl-mas` is not on the path. `verl-mas --version` prints the versions, and
[`verl-mas completion`](#verl-mas-completion) makes the shell complete commands and options. A run is trained with
`python -m verl.trainer.main_ppo`; the ARGUMENTS of a command are those of a run.

NAME=VALUE can be given several times, after one option or each after its own. The exit code is 0, 1 for what is
refused or has failed, and 2 for wrong arguments. This page is generated (`python scripts/generate_pages.py`).

## Arguments of several commands

A command that takes one of these names it after "Also".
"""

# An argument as a user types it, and its meaning.
Row = tuple[str, str]
SHARED_BY = 3
# The only subcommand that the page describes in full. Every other subcommand has one line.
ROWS = "data rows"
# A sentence of every command's help that the page says once, in its head.
SAID_ONCE = "ARGUMENTS are those of `python -m verl.trainer.main_ppo`."


def page(root: Path) -> str:
    """Return the page. It describes arguments of several commands once, before the commands."""
    found = {command: parser for command, parser in parsers() if shipped(parser)}
    users = Counter(row for parser in found.values() for row in options(parser))
    shared = [row for row, commands in users.items() if commands >= SHARED_BY and row[0].startswith("--")]
    lines = [HEAD, f"{listed(sorted(shared))}\n"]
    for title, commands in GROUPS.items():
        lines.append(f"## {title.partition(' (')[0]}\n")
        for command in commands:
            for name, parser in found.items():
                if name.split()[0] == command:
                    lines += [*described(name, parser, shared), ""]
    return "\n".join(lines).rstrip() + "\n"


def shipped(parser: Parser) -> bool:
    """Return whether the parser is part of this package, and not the parser of another package's data set."""
    dataset = parser.get_default("dataset")
    return dataset is None or type(dataset).__module__.startswith("verl_mas.")


def described(name: str, parser: Parser, shared: Sequence[Row]) -> Iterator[str]:
    if " " in name and name != ROWS:
        own = [f"`{row[0].split()[0]}`" for row in options(parser) if row not in shared and row[0].startswith("--")]
        about = plain(" ".join((parser.description or "").partition("\n\n")[0].split()))
        yield f"- `{usage(name, parser)}`: {about} {' '.join(own)}".rstrip()
        return
    yield f"{'####' if ' ' in name else '###'} `verl-mas {name}`\n"
    yield f"`{usage(name, parser)}`\n"
    yield description(parser.description or "")
    own = [row for row in options(parser) if row not in shared]
    above = [option.split()[0] for option, _ in options(parser) if (option, _) in shared]
    if own:
        yield f"\n{listed(own)}"
    if above:
        yield f"\nAlso {' '.join(f'`{option}`' for option in above)}"


def options(parser: Parser) -> list[Row]:
    return [(written(action), plain(with_default(action).replace("%%", "%"))) for action in parser.options()]


def listed(rows: Sequence[Row]) -> str:
    return "\n".join(f"- `{option}`: {meaning}" for option, meaning in rows)


def usage(name: str, parser: Parser) -> str:
    if parser.usage:
        return parser.usage.replace(" [-h]", "")
    needed = [written(action) for action in parser.options() if action.option_strings and action.required]
    optional = any(action.option_strings and not action.required for action in parser.options())
    positional = [written(action) for action in parser.options() if not action.option_strings]
    below = ["NAME ..."] if parser.below else []
    return " ".join([f"verl-mas {name}", *positional, *needed, *(["[OPTIONS]"] if optional else []), *below])


def written(action: argparse.Action) -> str:
    """Return an argument as a user types it: `--out PATH`, `RUN ...`, `[KIND]`, `--golden required|optional`."""
    value = str(action.metavar) if action.metavar else "|".join(map(str, action.choices or [action.dest.upper()]))
    value = {0: "", "?": f"[{value}]", "+": f"{value} ..."}.get("" if action.nargs is None else action.nargs, value)
    return " ".join([*action.option_strings[-1:], value]).strip()


def description(text: str) -> str:
    """Return a description in Markdown. Paragraphs that are indented or have columns become code blocks."""
    parts = re.split(r"\n\s*\n", text.replace(SAID_ONCE, "").strip("\n"))
    return "\n\n".join(
        f"```text\n{textwrap.dedent(part)}\n```" if "  " in part else plain(" ".join(part.split())) for part in parts
    )
