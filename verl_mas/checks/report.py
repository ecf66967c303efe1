"""What the checks before a run found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verl_mas.checks.doctor import Aspect
from verl_mas.checks.summary import Summary
from verl_mas.errors import ConfigError, ConfigWarning, raise_all


@dataclass(frozen=True)
class CheckReport:
    """`summary` is None if there are errors."""

    errors: Sequence[ConfigError] = ()
    warnings: Sequence[ConfigWarning] = ()
    machine: Sequence[Aspect] = ()
    summary: Summary | None = None

    @property
    def accepted(self) -> bool:
        return not self.errors

    @property
    def verdict(self) -> str:
        """`accepted`, `accepted with 2 warnings`, `refused: 3 errors, 1 warning`."""
        errors, warnings = _count(self.errors, "error"), _count(self.warnings, "warning")
        if self.errors:
            return f"refused: {errors}, {warnings}" if self.warnings else f"refused: {errors}"
        return f"accepted with {warnings}" if self.warnings else "accepted"

    @property
    def problems(self) -> str:
        """Every error and warning, and the verdict."""
        errors = [f"error: {error}" for error in self.errors]
        return "\n".join([*errors, *(f"warning: {warning}" for warning in self.warnings), self.verdict])

    def as_json(self) -> str:
        run = {"run": self.summary, "machine": [asdict(finding) for finding in self.machine]}
        return json.dumps(self.found() | run, indent=1, default=str)

    def found(self) -> dict[str, object]:
        """The verdict and its reasons, for JSON."""
        return {
            "verdict": self.verdict,
            "accepted": self.accepted,
            "errors": [{"value": error.value, "rule": error.rule, "fix": error.fix} for error in self.errors],
            "warnings": [asdict(warning) for warning in self.warnings],
        }

    def raise_errors(self) -> None:
        raise_all(self.errors)


def _count(found: Sequence[object], noun: str) -> str:
    return f"{len(found)} {noun}" if len(found) == 1 else f"{len(found)} {noun}s"
