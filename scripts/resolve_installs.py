"""Resolve every install command in the pages, the Makefile and the fixes of errors, without installing anything.

    pip install uv
    python scripts/resolve_installs.py

It prints the versions that each command resolves to on a GPU machine, for each Python that the command supports. The
exit code is 1 if a command does not resolve. It uses uv, because pip would download gigabytes to read the requirements
of packages.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("Makefile", "README.md", "CONTRIBUTING.md", "recipes/*/README.md", "docs/**/*.md", "patches/*.md")
COMMAND = re.compile(r"\b(?:uv )?pip install [^\n`]*")
# Requirements that mean this project: `.` in a clone, its name, or the path of a clone.
PROJECT = re.compile(r"^(?:\.|verl-mas|path/to/a/clone/of/verl-mas)(?P<extras>\[[\w,-]+\])?$")
PYTHONS = ("3.10", "3.11", "3.12")
# GPU engines, as packages or as extras of this project. They are resolved only for the newest Python, as in
# docs/start/gpu-quickstart.md.
OF_GPUS = {"vllm", "sglang"}
MACHINE = ("--python-platform", "x86_64-manylinux_2_34")
# Options of pip that uv has under the same name, with and without a value.
WITH_VALUE = {"-c", "--constraint", "--override", "--index-url", "--only-binary"}
WITHOUT_VALUE = {"--no-deps"}
# Options that change how a package is installed, but not which version.
WITHOUT_EFFECT = {"--no-build-isolation", "--no-compile", "--quiet", "-q", "--editable", "-e", "--upgrade"}
SHOWN = ("verl", "torch", "transformers", "vllm", "sglang", "flash-attn")
TIME_LIMIT = 600  # seconds


@dataclass(frozen=True)
class Install:
    """The parts of an install command that a resolver needs."""

    line: str
    requirements: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def extras(self) -> frozenset[str]:
        """Return the extras of this project that the command installs."""
        matches = (PROJECT.match(each) for each in self.requirements)
        found = (match["extras"] for match in matches if match and match["extras"])
        return frozenset(name for extras in found for name in extras.strip("[]").split(","))

    @property
    def files(self) -> frozenset[str]:
        """Return the files that the command reads, relative to the clone."""
        pairs = zip(self.options, self.options[1:], strict=False)
        return frozenset(value for name, value in pairs if name in ("-c", "--constraint", "--override"))

    @property
    def pythons(self) -> tuple[str, ...]:
        ours = any(PROJECT.match(each) for each in self.requirements)
        names = {*self.extras, *(each.partition("==")[0] for each in self.requirements)}
        return PYTHONS if ours and not names & OF_GPUS else PYTHONS[-1:]

    def resolver_input(self) -> str:
        return "".join(PROJECT.sub(rf"verl-mas\g<extras> @ {ROOT.as_uri()}", each) + "\n" for each in self.requirements)


def read(line: str) -> Install:
    """Parse an install command. Raise ValueError for an unknown option, because it may change the versions."""
    words = shlex.split(line, comments=True)
    words = words[words.index("install") + 1 :]
    requirements: list[str] = []
    options: list[str] = []
    while words:
        word = words.pop(0)
        if word in WITH_VALUE:
            options += [word, words.pop(0)]
        elif word in WITHOUT_VALUE:
            options.append(word)
        elif word.startswith("-") and word not in WITHOUT_EFFECT:
            raise ValueError(f"{line}: scripts/resolve_installs.py does not know {word}")
        # Skip a variable of the Makefile, which holds the source of a package.
        elif not word.startswith(("-", "$(")):
            requirements.append(word)
    return Install(" ".join(line.split()), tuple(requirements), tuple(options))


def of_page(text: str) -> Iterator[Install]:
    """Yield the install commands in the code blocks and sentences of a page."""
    for match in COMMAND.finditer(text.replace("\\\n", " ")):
        yield read(match[0].partition(" #")[0].strip())


def of_module(text: str) -> Iterator[Install]:
    """Yield the install commands in a module's strings, without f-strings. After a comma, another fix begins."""
    tree = ast.parse(text)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            for match in COMMAND.finditer(node.value):
                yield read(match[0].partition(", ")[0])


def documented() -> dict[Install, list[str]]:
    """Return every install command with the files that contain it."""
    found: dict[Install, list[str]] = {}
    for pattern, extract in [*((page, of_page) for page in PAGES), ("verl_mas/**/*.py", of_module)]:
        for path in sorted(ROOT.glob(pattern)):
            for install in extract(path.read_text()):
                found.setdefault(install, []).append(str(path.relative_to(ROOT)))
    return found


def resolve(install: Install, python: str) -> tuple[bool, str]:
    """Return whether the command resolves, and the versions of the main packages or else the resolver's error."""
    command = ["uv", "pip", "compile", "-", "--python-version", python, *MACHINE, *install.options]
    command += ["--no-annotate", "--no-header", "--quiet"]
    done = subprocess.run(
        command, input=install.resolver_input(), cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT
    )
    if done.returncode:
        return False, done.stderr.strip()
    pins = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    return True, ", ".join([f"{len(pins)} packages", *(f"{name} {pins[name]}" for name in SHOWN if name in pins)])


def main() -> int:
    failed = 0
    for install, places in documented().items():
        sys.stdout.write(f"{install.line}\n    in {', '.join(places)}\n")
        for python in install.pythons:
            resolved, seen = resolve(install, python)
            failed += not resolved
            sys.stdout.write(f"    Python {python} {'resolves' if resolved else 'FAILS'}: {seen}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{failed} install commands cannot be resolved\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
