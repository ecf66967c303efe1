"""Apply each patch of patches/upstream separately to a checkout of verl, and run the tests of the patch.

    python scripts/upstream.py VERL --python PYTHON [--without] [NAME ...]

PYTHON is a Python with verl's dependencies. With `--without`, only the tests of a patch are applied, and they have to
fail. The checkout VERL is not changed. The exit code is 1 if a patch does not apply, if its tests fail or, with
`--without`, if its tests pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PATCHES = Path(__file__).parents[1] / "patches" / "upstream"
AUTHOR = ("-c", "user.name=upstream.py", "-c", "user.email=upstream.py@localhost")
TESTS_FAILED = 1  # pytest's exit code for failed tests; any higher exit code is an error


def tests_of(patch: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(tests/\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE)


def tried(patch: Path, verl: Path, python: str, without: bool) -> str:
    """Try a patch in a clean worktree of verl. Return an error message, or an empty string if nothing is wrong."""
    applied = ("apply", "--include=tests/*", patch) if without else (*AUTHOR, "am", "-q", patch)
    done = subprocess.run(["git", *applied], cwd=verl, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"does not apply: {done.stderr.strip()}"
    environment = os.environ | {"PYTHONPATH": str(verl), "VERL_USE_EXTERNAL_PLUGINS": "none"}
    command = [python, "-m", "pytest", "-q", *tests_of(patch)]
    done = subprocess.run(command, cwd=verl, env=environment, capture_output=True, text=True, check=False)
    ended = done.returncode == (TESTS_FAILED if without else 0)
    return "" if ended else f"pytest ended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the patches, without .patch; default: all")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--without", action="store_true", help="apply the tests alone, which have to fail")
    asked = parser.parse_args(arguments)
    faults = 0
    for patch in [PATCHES / f"{name}.patch" for name in asked.names] or sorted(PATCHES.glob("*.patch")):
        with tempfile.TemporaryDirectory() as folder:
            git = ["git", "-C", str(asked.verl), "worktree"]
            subprocess.run([*git, "add", "-q", "--detach", f"{folder}/verl", "HEAD"], check=True)
            fault = tried(patch.resolve(), Path(folder, "verl"), asked.python, asked.without)
            subprocess.run([*git, "remove", "--force", f"{folder}/verl"], check=True)
        sys.stdout.write(f"{patch.stem}: {fault or ('fails without' if asked.without else 'passes')}\n")
        sys.stdout.flush()
        faults += bool(fault)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
