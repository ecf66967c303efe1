"""On the CPU verl asks torch for the backend "cpu:gloo,cpu:gloo", which torch refuses."""

from __future__ import annotations

import hashlib
import inspect
from types import ModuleType

from verl_mas.errors import PatchRefused

DIFF = "upstream/cpu-process-group.patch"
# One line, which is replaced in these functions; each has its source's sha256.
BEFORE = 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'
AFTER = '",".join(dict.fromkeys(("cpu:gloo", f"{get_device_name()}:{get_nccl_backend()}")))'
FUNCTIONS = {
    "initialize_global_process_group": "33a5452c4dde00591e00692a5f967cc7b424a3b7ebd9da7cb23697209ddbd0e1",
    "initialize_global_process_group_ray": "761a94d1a2e058d31a0ac231c89a142abf5daf822e333bac75e84cafcf7507ac",
}
_MARK = f"_verl_mas_{DIFF}"


def patch(module: ModuleType) -> None:
    """Idempotent. Refuses a source that it was not written for, and changes nothing then."""
    if getattr(module, _MARK, False):
        return
    for source in [_patched(module, name) for name in FUNCTIONS]:
        exec(compile(source, f"{module.__file__} ({DIFF})", "exec"), module.__dict__)
    setattr(module, _MARK, True)


def _patched(module: ModuleType, name: str) -> str:
    source = inspect.getsource(getattr(module, name))
    if hashlib.sha256(source.encode()).hexdigest() != FUNCTIONS[name]:
        raise PatchRefused(
            f"patches/{DIFF} does not fit {module.__name__}.{name} of this verl\n"
            "  rule: a patch is applied only to the source that it was written for\n"
            "  fix: install a verl that verl-mas supports (`verl-mas doctor` names it)"
        )
    return source.replace(BEFORE, AFTER)
