"""On the CPU verl asks torch for the backend "cpu:gloo,cpu:gloo", which torch refuses."""

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


PATCH = Patch(
    diff="cpu-process-group.diff",
    before='f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"',
    after='",".join(dict.fromkeys(("cpu:gloo", f"{get_device_name()}:{get_nccl_backend()}")))',
    functions={
        "initialize_global_process_group": "33a5452c4dde00591e00692a5f967cc7b424a3b7ebd9da7cb23697209ddbd0e1",
        "initialize_global_process_group_ray": "761a94d1a2e058d31a0ac231c89a142abf5daf822e333bac75e84cafcf7507ac",
    },
)
