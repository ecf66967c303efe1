"""Rules for combinations of settings. Each rule is a function of a run, and reports a mistake that users have made.

To add a rule, write a function into a module of this folder:

    @rule(seen="trl#3199, ms-swift#3980")
    def group_of_one(run: ExaminedRun) -> ConfigError | None:
        \"\"\"Estimators that compare sessions need more than one session per task.\"\"\"

With `of="learning"` or `of="served"`, a rule is a function of (run, view), called for each policy that the run updates
or serves.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.refusals import Problem as Problem

Check: TypeAlias = Callable[..., Iterable[Problem] | Problem | None]


@dataclass(frozen=True)
class Rule:
    check: Check
    seen: str  # Where the mistake was made: public threads, or a run that failed
    team: bool | None  # True: only for teams; False: only for runs without a team; None: for both
    of: str | None  # "learning" or "served": called for each such policy; None: called for the run
    here: bool  # Whether the rule is about this machine and its packages

    def problems(self, run: ExaminedRun) -> Iterator[Problem]:
        if self.team in (None, run.mode is not None):
            for view in getattr(run, self.of) if self.of else [None]:
                found = self.check(run, view) if view else self.check(run)
                yield from [found] if isinstance(found, Problem) else found or ()


_RULES: dict[str, Rule] = {}


def rule(*, seen: str, team: bool | None = None, of: str | None = None, here: bool = False) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        assert check.__name__ not in _RULES, check.__name__
        _RULES[check.__name__] = Rule(check, seen, team, of, here)
        return check

    return register


@cache
def every_rule() -> Mapping[str, Rule]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _RULES
