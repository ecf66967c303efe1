"""Fix of verl's process group on a CPU: verl asks torch for the backend "cpu:gloo,cpu:gloo", which torch refuses."""

import inspect
from types import ModuleType

DIFF = "upstream/cpu-process-group.patch"
# A line of the functions below. In a version of verl without this line, nothing is replaced.
BEFORE = 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'
AFTER = '",".join(dict.fromkeys(("cpu:gloo", f"{get_device_name()}:{get_nccl_backend()}")))'
FUNCTIONS = ("initialize_global_process_group", "initialize_global_process_group_ray")


def patch(module: ModuleType) -> None:
    for name in FUNCTIONS:
        source = inspect.getsource(getattr(module, name))
        if BEFORE in source:
            exec(compile(source.replace(BEFORE, AFTER), f"{module.__file__} ({DIFF})", "exec"), module.__dict__)
