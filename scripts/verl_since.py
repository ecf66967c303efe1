"""Write patches/verl-names.md: for each name of verl that verl-mas overrides or uses, the first release with the name.

python scripts/verl_since.py 0.7.1 0.8.0 0.9.0 0.9.1     # downloads these wheels
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import verl_contract as contract
from verl_contract.sources import find, parameters

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "patches/verl-names.md"
HEAD = """\
# What verl-mas touches in verl

Methods that it overrides, and names beyond verl's public functions and classes that it calls, reads or repeats, each
with the first of the releases {known} that has it with the parameters that we expect.

`tests/verl_/test_contract.py` holds that this list is complete and fits the installed verl; `verl-mas doctor` compares
it with yours. That the names still do what we expect of them is held by the end-to-end tests, which run
`python -m verl.trainer.main_ppo` (`tests/trainer`, `tests/engines`). Written by `python scripts/verl_since.py`.

| of verl | name: since |
|---|---|
"""


def touched() -> Iterator[tuple[str, str, str | None]]:
    """Yield a class or module of verl, a name in it, and the name's parameters.

    For code of verl that verl-mas repeats, the parameters do not matter and are `*`.
    """
    for table in (contract.OVERRIDDEN, contract.USED):
        for owner, members in table.items():
            yield from ((owner, name, known) for name, known in members.items())
    for path in contract.RESTATED:
        owner, name = re.fullmatch(r"(.*)[.:](.*)", path).groups()
        yield owner, name, "*"


def present() -> list[str]:
    """Return the touched names that the verl on the path has with the expected parameters."""
    found = []
    for owner, name, known in touched():
        path = f"{owner}.{name}" if ":" in owner else f"{owner}:{name}"
        if (definition := find(path)) and known in ("*", parameters(definition.node)):
            found.append(f"{owner} {name}")
    return found


def of_release(version: str) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        wheel = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, f"verl=={version}"]
        subprocess.run([sys.executable, *wheel], check=True)
        paths = os.pathsep.join([folder, str(ROOT)])
        command = [sys.executable, __file__, "--present"]
        done = subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE)
    return set(json.loads(done.stdout))


def page(releases: list[str]) -> str:
    known = {version: of_release(version) for version in releases}
    rows = defaultdict[str, dict[str, str]](dict)
    for owner, name, _ in touched():
        of = [version for version, names in known.items() if f"{owner} {name}" in names]
        rows[owner][name] = of[0] if of else "none of them"
    lines = (
        f"| `{owner}` | {', '.join(f'`{name}`: {since}' for name, since in sorted(names.items()))} |\n"
        for owner, names in sorted(rows.items())
    )
    return HEAD.format(known=", ".join(releases)) + "".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--present"]:
        sys.stdout.write(json.dumps(present()))
    else:
        PAGE.write_text(page(sys.argv[1:]))
