"""The CPU as a platform of verl: `+platform=cpu`, or VERL_PLATFORM=cpu. Never chosen by auto-detection.

`verl_mas.plugin` names the functions here as hooks; each gets the module of verl that was just imported.
"""

from __future__ import annotations

import os
from types import ModuleType

DEVICE = "cpu"


def selected() -> bool:
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == DEVICE


def register_platform(platform_manager: ModuleType) -> None:
    from verl_mas.platform.cpu import PlatformCPU

    platform_manager.PlatformRegistry.register(platform=DEVICE)(PlatformCPU)


def register_training_engine(transformer_impl: ModuleType) -> None:
    """The classes register themselves: their module may be what imports verl's, and then is not complete yet."""
    import verl_mas.platform.fsdp  # noqa: F401


def patch_process_group(distributed: ModuleType) -> None:
    if selected():
        from verl_mas.platform.process_group import patch

        patch(distributed)
