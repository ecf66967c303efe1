"""The `verl-mas` command. Each module of this folder is a subcommand in `GROUPS`, unless its name begins with `_`.

The module of a subcommand has `parser()`, which declares the arguments, and `main(argv)`, which returns the exit code.
The first line of its docstring is the summary of the subcommand. Only `main` imports modules that are slow to import,
so that help and completion are quick.
"""

import importlib
import os
import re
import sys
from importlib.util import find_spec
from keyword import iskeyword

from verl_mas.errors import ConfigError, MasError, refused_path

# The commands in the order in which a new user meets them.
GROUPS = {
    "Getting started": ["demo", "doctor", "new", "adopt", "try", "list"],
    "Data": ["data", "retriever"],
    "Training (python -m verl.trainer.main_ppo trains)": ["check", "plan"],
    "Looking at a run": ["view", "report", "export-sessions"],
    "After training": ["export", "serve", "eval"],
    "Shell": ["completion"],
}


def commands() -> list[str]:
    return sorted(name for group in GROUPS.values() for name in group)


def module_of(command: str) -> str:
    """Return the module of a command. `try` is a keyword of Python, so its module is `try_`."""
    return f"{__name__}.{command.replace('-', '_')}{'_' if iskeyword(command) else ''}"


def summary(module: str) -> str:
    """Return the first line of a module's docstring without importing the module; empty if the module is not found."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    with open(spec.origin, encoding="utf-8") as source:
        return source.readline().strip().strip('"')


def usage() -> str:
    import shutil

    from verl_mas.util.text import listed

    width = shutil.get_terminal_size().columns
    lines = ["usage: verl-mas COMMAND ... | --version | --help"]
    for title, group in GROUPS.items():
        found = {f"{name:15}": summary(module_of(name)) for name in group}
        lines += ["", f"{title}:", listed(found, width, "  ")]
    return "\n".join([*lines, "", "`verl-mas COMMAND --help` describes a command."])


def versions() -> str:
    """List versions from the metadata of the packages, without importing them."""
    from verl_mas.util import installed_version

    packages = ("verl-mas", "verl", "torch")
    return "\n".join(f"{package} {installed_version(package) or 'not installed'}" for package in packages)


def main(argv: list[str] | None = None) -> int:
    try:
        try:
            return _main(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `| head -1` does. Python would fail when it flushes its buffer at exit, so
        # send the rest of the output to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _refuse_times_of_ray() -> None:
    for name, value in os.environ.items():
        if re.fullmatch(r"RAY_\w+_ms", name) and not value.removeprefix("-").isdecimal():
            rule = "it is a number: with another value, `import ray` ends the process by a segmentation fault"
            raise ConfigError(f"{name}={value}", rule=rule, fix=f"unset {name}")


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "--version"):
        sys.stdout.write((versions() if argv == ["--version"] else usage()) + "\n")
        return 0
    command, *rest = argv
    if command not in commands():
        from verl_mas.config.registry import nearest

        sys.stderr.write(f"verl-mas: no command {command!r}: {nearest(command, commands())}\n")
        return 2
    # Make modules in the current folder importable, as `python -m verl.trainer.main_ppo` does. Here the folder comes
    # last, so that a module with the name of a package cannot break the check that warns about this module.
    sys.path.append(os.getcwd())
    try:
        _refuse_times_of_ray()
        return int(importlib.import_module(module_of(command)).main(rest))
    except (MasError, OSError) as error:
        refused = error if isinstance(error, MasError) else refused_path(error)
        if refused is None:
            raise
        return _refused(command, refused, as_json="--json" in rest)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nverl-mas {command}: interrupted\n")
        return 130


def _refused(command: str, error: MasError, *, as_json: bool) -> int:
    from verl_mas.cli._output import refusal, write_json
    from verl_mas.cli._parser import UsageError
    from verl_mas.util.text import printable

    if as_json:
        write_json(refusal(error))
    else:
        sys.stderr.write(printable(f"verl-mas {command}: {error}\n"))
    return 2 if isinstance(error, UsageError) else 1
