"""Seed chosen faults in the package, one at a time, and report whether the tests catch each fault.

    python scripts/mutants.py [--only NAME ...] [--slow] [--list] [--checkout FOLDER]

The faults are in scripts/mutants.toml, each with the tests that must fail with it. The checkout is copied, and only the
copy is changed. The exit code is 1 if a fault is not caught. It is 2 if the list does not fit the code or the tests,
that is, if the text of a fault is not in exactly one place of the package, or a test fails without any fault.

The faults are chosen by hand, because mutmut and cosmic-ray only exchange Python's operators and constants. They make
thousands of faults with a test run each, and none of these faults shares a counter between two continued paths of a
session or drops a cancellation.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
PACKAGE = "verl_mas"
SUFFIXES = (".py", ".js")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "runs", "outputs")
TIME_LIMIT = 1800  # seconds
FAILED = 1  # pytest's exit code if a test failed
# If a test fails with one of these errors, `new` is invalid code, and the test has not caught the fault.
NO_FAULT = ("NameError", "SyntaxError", "ImportError", "ModuleNotFoundError")


class BadList(Exception):
    """The list of faults does not fit the code or the tests."""


@dataclass(frozen=True)
class Fault:
    """A replacement of `old`, which occurs once in the package, by `new`. It must make the `tests` fail.

    The whitespace of `old` may differ from the whitespace in the package.
    """

    name: str
    old: str
    new: str
    tests: Sequence[str]
    slow: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.old.split())))

    def place(self, package: Path) -> tuple[Path, str]:
        """Return the file that contains `old`, and the file's content with the fault."""
        places: list[tuple[Path, str]] = []
        for path in sorted(path for path in package.rglob("*") if path.suffix in SUFFIXES):
            text = path.read_text()
            matches = self.pattern.finditer(text)
            places += [(path, text[: match.start()] + self.new + text[match.end() :]) for match in matches]
        if len(places) != 1:
            where = ", ".join(str(path.relative_to(package)) for path, _ in places) or "nowhere"
            raise BadList(f"{self.name}: `old` must be in one place of {PACKAGE}/, and is {where}")
        return places[0]


def read_list(chosen: Sequence[str], slow: bool) -> list[Fault]:
    """Return the faults to seed: the chosen faults, or else all faults; `slow` includes the slow faults."""
    faults = [Fault(**entry) for entry in tomllib.loads(LIST.read_text())["fault"]]
    names = [fault.name for fault in faults]
    wrong = sorted({name for name in names if names.count(name) > 1} | (set(chosen) - set(names)))
    if wrong:
        raise BadList(f"not a name of one fault: {', '.join(wrong)}")
    return [fault for fault in faults if fault.name in chosen or (not chosen and (slow or not fault.slow))]


def copied(checkout: Path, folder: Path) -> Path:
    """Copy the checkout. Python checks the copy's compiled files by the hash of their source.

    A file with a fault may have the same size and modification time as the original file.
    """
    copy = folder / "checkout"
    shutil.copytree(checkout, copy, symlinks=True, ignore=NOT_COPIED)
    for part in (PACKAGE, "tests/support"):
        compileall.compile_dir(copy / part, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return copy


def tested(copy: Path, tests: Sequence[str], *, slow: bool) -> tuple[int, str]:
    """Run the tests, and return the exit code and the output of pytest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "e2e" if slow else "not e2e", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"FAILED no end after {TIME_LIMIT} s"
    return done.returncode, done.stdout + done.stderr


def failed_test(output: str) -> tuple[str, str]:
    """Return the first test that failed, and the reason."""
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - (.*))?$", output, re.MULTILINE)
    return (found[1], found[2] or "") if found else ("(pytest named no test)", "")


def check_tests(copy: Path, faults: Sequence[Fault]) -> None:
    """Check that all tests pass without a fault. Otherwise, a failing test would not show that a fault is caught."""
    for slow in (False, True):
        if tests := sorted({test for fault in faults if fault.slow is slow for test in fault.tests}):
            code, output = tested(copy, tests, slow=slow)
            if code:
                raise BadList(f"without any fault, {failed_test(output)[0]} fails:\n{output[-4000:]}")


def places_of(faults: Sequence[Fault], checkout: Path) -> Iterator[tuple[Fault, Path]]:
    """Yield each fault with its file. At the end, one error lists all faults that do not fit."""
    problems = []
    for fault in faults:
        try:
            yield fault, fault.place(checkout / PACKAGE)[0].relative_to(checkout)
        except BadList as error:
            problems.append(str(error))
        missing = [test for test in fault.tests if not (checkout / test.partition("::")[0]).exists()]
        problems += [f"{fault.name}: {test} is not there" for test in missing]
    if problems:
        raise BadList("\n".join(problems))


def seeded(copy: Path, faults: Sequence[Fault]) -> Iterator[bool]:
    """Seed one fault after the other, and yield whether the tests catch it."""
    for fault in faults:
        path, text = fault.place(copy / PACKAGE)
        sound, began = path.read_bytes(), time.monotonic()
        path.write_text(text)
        try:
            code, output = tested(copy, fault.tests, slow=fault.slow)
        finally:
            path.write_bytes(sound)
        test, reason = failed_test(output)
        if code not in (0, FAILED) or reason.startswith(NO_FAULT):
            raise BadList(f"{fault.name}: the tests did not run as they should\n{output[-4000:]}")
        verdict = f"caught by {test}" if code else f"NOT CAUGHT by {', '.join(fault.tests)}"
        say(f"{fault.name:32} {time.monotonic() - began:5.1f} s  {verdict}")
        yield code != 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(options: argparse.Namespace) -> int:
    faults = read_list(options.only, options.slow or options.list)
    # Check the whole list first, which takes a second.
    listed = [
        f"{fault.name:32} {where}: {', '.join(fault.tests)}" for fault, where in places_of(faults, options.checkout)
    ]
    if options.list:
        say("\n".join(listed))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(options.checkout, Path(folder))
        check_tests(copy, faults)
        caught = list(seeded(copy, faults))
    say(f"{sum(caught)} of {len(caught)} faults are caught")
    return 0 if all(caught) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults")
    parser.add_argument("--slow", action="store_true", help="also the faults that need an end-to-end run")
    parser.add_argument("--list", action="store_true", help="print the faults and where they are; run nothing")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="another checkout, with the list of this one")
    try:
        return run(parser.parse_args())
    except BadList as error:
        say(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
