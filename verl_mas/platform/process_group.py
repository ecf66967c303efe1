"""On the CPU verl asks torch for the backend "cpu:gloo,cpu:gloo", which torch refuses."""

from __future__ import annotations

from verl_mas.platform.patching import Patch

PATCH = Patch(
    diff="cpu-process-group.diff",
    before='f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"',
    after='",".join(dict.fromkeys(("cpu:gloo", f"{get_device_name()}:{get_nccl_backend()}")))',
    functions={
        "initialize_global_process_group": "33a5452c4dde00591e00692a5f967cc7b424a3b7ebd9da7cb23697209ddbd0e1",
        "initialize_global_process_group_ray": "761a94d1a2e058d31a0ac231c89a142abf5daf822e333bac75e84cafcf7507ac",
    },
)
