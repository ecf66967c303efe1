"""The parser of the commands: argparse, with our form of errors, and with options that take several NAME=VALUE."""

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import NoReturn

from verl_mas.errors import ConfigError
from verl_mas.util.text import printable

SETTING = "NAME=VALUE"


class UsageError(ConfigError):
    """Arguments that a command does not accept; the exit code is 2."""


class Parser(argparse.ArgumentParser):
    """A parser that does not abbreviate options, so that a new option cannot change the meaning of a script."""

    def __init__(self, prog: str, description: str | None = None, **kwargs: object):
        self.below: Mapping[str, Parser] = {}  # parsers of subcommands by name, such as `rows` of `verl-mas data`
        kwargs.setdefault("formatter_class", _Formatter)
        super().__init__(prog, description=description, allow_abbrev=False, **kwargs)  # type: ignore[arg-type]
        self.register("type", None, _text)
        self.register("type", Path, lambda given: Path(_text(given)))

    def add_subparsers(self, **settings: object):  # type: ignore[no-untyped-def]
        action = super().add_subparsers(**settings)  # type: ignore[call-overload]
        self.below = action.choices
        return action

    def options(self) -> list[argparse.Action]:
        """List the arguments and options in the order of the help, except --help and options that the help omits."""
        unlisted = ("help", argparse.SUPPRESS)  # SUPPRESS is the `dest` of the argument that `add_subparsers` adds
        return [one for one in self._actions if one.dest not in unlisted and one.help is not argparse.SUPPRESS]

    def parse_known_args(  # type: ignore[override]  # argparse declares it for namespaces of any type
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        # Options that take NAME=VALUE pairs are read by `_each`. With `nargs`, argparse would assign all words after
        # such an option to it, even the command's own arguments.
        pairs = [action for action in self._actions if action.metavar is not None and "=" in str(action.metavar)]
        repeated = {option for action in pairs for option in action.option_strings}
        # If an option that takes one value is repeated, argparse would use the last value, so refuse the repetition.
        single = (action for action in self._actions if not isinstance(action.default, list))
        for option in (option for action in single for option in action.option_strings):
            if sum(word == option or word.startswith(f"{option}=") for word in args or ()) > 1:
                self.error(f"{option} is given twice")
        return super().parse_known_args(None if args is None else list(_each(args, repeated)), namespace)

    def format_help(self) -> str:
        """Format the help. A usage that a command sets is wrapped here, because argparse does not wrap it."""
        usage, empty, rest = super().format_help().partition("\n\n")
        if self.usage is not None:
            usage = textwrap.fill(usage, get_terminal_size().columns, subsequent_indent="       ")
        return usage + empty + rest

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ").replace(" [-h]", "")
        listed = f"`{self.prog} --help` lists the arguments"
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        known = [option for action in self.options() for option in action.option_strings]
        close = difflib.get_close_matches(unknown[1].partition("=")[0], known, n=1) if unknown else []
        fix = f"did you mean {close[0]!r}? {listed}" if close else listed
        raise UsageError(_plain(message), rule=f"the command is: {usage}", fix=fix)


def _text(given: str) -> str:
    """Check a string argument of any command. An empty string, for example from an unset variable, is refused, because
    it could have another meaning: as a path it is the current folder."""
    if not given.strip() or printable(given, keep="") != given:
        raise argparse.ArgumentTypeError(f"{given!r} is not one line of text")
    return given


def _each(arguments: Sequence[str], repeated: set[str]) -> Iterator[str]:
    """Turn `--size a=1 b=2` into `--size=a=1 --size=b=2`."""
    option = without = ""
    for item in arguments:
        if option and "=" in item and not item.startswith("-"):
            without = ""
            yield f"{option}={item}"
            continue
        if without:
            # The first word after the option is not a pair. Yield the option and the word separately. If the word is an
            # option, argparse reports a missing value. Otherwise the word is the option's value, which the function
            # `pairs` in `_arguments.py` checks.
            yield without
        option = without = item if item in repeated else ""
        if not option:
            yield item
    if without:
        yield without


def _plain(message: str) -> str:
    """Return argparse's message without argparse's own terms."""
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing:
        return f"missing: {missing[1]}"
    return re.sub(r"^unrecognized arguments: ", "not known: ", message).removeprefix("argument ")


class _Formatter(argparse.HelpFormatter):
    """Wraps every paragraph by itself, keeps indented lines, and adds the defaults."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", text.strip())
        return "\n\n".join(
            part if "\n  " in f"\n{part}" or "  " in part else textwrap.fill(" ".join(part.split()), width)
            for part in paragraphs
        )

    def _get_help_string(self, action: argparse.Action) -> str:
        return with_default(action)


def with_default(action: argparse.Action) -> str:
    """Return the help of an argument, and append the default if it is informative."""
    text, default = action.help or "", action.default
    written = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    silent = "default" in text or any(default is none for none in (None, False, argparse.SUPPRESS))
    return text if silent or not written else f"{text} (default: {written})".strip()
