"""A program, and the result that it must have. A file of programs has these fields:

    defaults: fields of all its cases that do not give them
    preludes: texts by name
    cases:
    - name: of the test
      program: its text, behind the text of its `prelude`
      attempts: instead of `program`, attacks that must all be refused
      ends: the values of `Status` with which it may end; [ok] by default
      prints: its whole stdout
      says: a part of its stdout
      stdin, limits: as an executor takes them

Programs may name @CALLER@ and @VICTIM@, process ids, @SECRET@, a file that everybody may read, and @FOLDER@, in which
everybody may write.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from verl_mas.environment.execution.executor import Limits, Result, Status

# Seconds beyond the wall time, to notice and end a program on a busy machine.
SLACK_S = 1.0
ESCAPED = "ESCAPED"
# No program may print the secret. Programs search for it with a pattern that does not match itself.
SECRET = re.compile(r"Zx9Secret-[0-9a-f]{16}")

# Each attack of a program says whether it was refused. Only an error of the operating system counts as a refusal:
# an attack that fails for another reason was not made, and ends the program.
ATTEMPT = """\
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def attempt(name, attack):
    try:
        got = attack()
    except OSError as error:
        print("refused", name, error.errno)
    else:
        print("ESCAPED", name, repr(got)[:300])

def system_call(name, number, *args):
    ctypes.set_errno(0)
    got = libc.syscall(*[ctypes.c_long(value) if isinstance(value, int) else value for value in (number, *args)])
    refused = got == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)
    print("refused" if refused else "ESCAPED", name, got, ctypes.get_errno())
"""


@dataclass(frozen=True)
class Case:
    name: str
    program: str
    ends: frozenset[Status] = frozenset({Status.OK})
    prints: str | None = None
    says: str = ""
    stdin: str = ""
    limits: Limits = field(default_factory=Limits)

    def wrong(self, result: Result) -> list[str]:
        """Describe each way in which the result differs from what the case requires."""
        output = result.stdout + result.stderr
        seen = f"{result.status.name}, exit code {result.exit_code}, {output[-500:]!r}"
        tests = {
            "escaped": ESCAPED not in output,
            "printed a secret": SECRET.search(output) is None,
            f"must end as {sorted(status.name for status in self.ends)}": result.status in self.ends,
            f"must print {self.prints!r:.100}": self.prints is None or result.stdout == self.prints,
            f"must say {self.says!r}": self.says in result.stdout,
            "ran too long": result.seconds <= self.limits.seconds + SLACK_S,
            "used too much CPU": result.cpu_seconds <= self.limits.cpu_s + SLACK_S,
            "used too much memory": result.memory_mb <= self.limits.memory_mb + 64,
            "printed too much": max(len(result.stdout), len(result.stderr)) <= self.limits.output_bytes + 200,
        }
        return [f"{self.name}: {what} ({seen})" for what, right in tests.items() if not right]


class _Loader(yaml.SafeLoader):
    """Refuses mappings that have a key twice. For example, `program` occurs twice if the next case lacks its name."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice{node.start_mark}"
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        return mapping


def read(file: Path) -> list[Case]:
    content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    defaults, preludes = content.get("defaults", {}), {"attempt": ATTEMPT, **content.get("preludes", {})}
    return [_case(row, defaults, preludes) for row in content["cases"]]


def _case(row: Mapping[str, Any], defaults: Mapping[str, Any], preludes: Mapping[str, str]) -> Case:
    fields = {"ends": ["ok"], "limits": {}, **defaults, **row}
    if "attempts" in row:
        # The program prints `done` after the last attack, so that a skipped attack is noticed.
        fields["program"] = f"{ATTEMPT}\n{fields.pop('attempts')}\nprint('done')\n"
        fields |= {"ends": row.get("ends", ["ok"]), "says": "done"}
    if "prelude" in row:
        fields["program"] = preludes[fields.pop("prelude")] + fields["program"]
    fields["ends"] = frozenset(map(Status, fields["ends"]))
    return Case(**{**fields, "limits": Limits(**fields["limits"])})
