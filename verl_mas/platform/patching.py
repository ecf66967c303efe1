"""Applies a diff of `patches/` at import: the same lines, replaced in a function of verl."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from types import ModuleType

from verl_mas.errors import PatchRefused


@dataclass(frozen=True)
class Patch:
    """One line, replaced in some functions of a module. `functions` maps each name to its source's sha256."""

    diff: str
    before: str
    after: str
    functions: dict[str, str]

    def apply(self, module: ModuleType) -> None:
        """Idempotent. Refuses a source that it was not written for, and changes nothing then."""
        if getattr(module, self._mark, False):
            return
        patched = [self._patched(module, name, sha256) for name, sha256 in self.functions.items()]
        for source in patched:
            exec(compile(source, f"{module.__file__} ({self.diff})", "exec"), module.__dict__)
        setattr(module, self._mark, True)

    def _patched(self, module: ModuleType, name: str, sha256: str) -> str:
        source = inspect.getsource(getattr(module, name))
        if source_sha256(source) != sha256 or self.before not in source:
            raise PatchRefused(
                f"patches/{self.diff} does not fit {module.__name__}.{name} of this verl\n"
                "  rule: a patch is applied only to the source that it was written for\n"
                "  fix: install a verl that verl-mas supports (`verl-mas doctor` names it)"
            )
        return source.replace(self.before, self.after)

    @property
    def _mark(self) -> str:
        return f"_verl_mas_{self.diff}"


def source_sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
