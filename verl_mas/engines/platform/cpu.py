"""verl's platform interface on a machine without an accelerator."""

import contextlib
from collections.abc import Iterator
from types import ModuleType

import torch
from verl.plugin.platform.platform_base import PlatformBase

from verl_mas.engines.platform import DEVICE, cpu_device


class PlatformCPU(PlatformBase):
    """A platform with one logical device. A "GPU" of Ray stands for one worker process."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return cpu_device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Never detect the CPU as the platform, because even in a GPU cluster the head node may have no GPU.
        return False

    def current_device(self) -> str:  # type: ignore[override]  # verl passes it on as a torch device
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        # The name is "GPU", because verl counts only GPU and NPU when it checks that a resource pool can be placed.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def register(platform_manager: ModuleType) -> None:
    platform_manager.PlatformRegistry.register(platform=DEVICE)(PlatformCPU)
