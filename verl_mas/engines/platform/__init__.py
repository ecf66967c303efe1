"""The CPU as a platform of verl (`+platform=cpu` or VERL_PLATFORM=cpu; never auto-detected), and changes to verl on
every platform: to the ports of its processes, the computation of log-probs and the poll interval of its replay buffer.

`verl_mas.plugin` registers the functions here as hooks; each gets the module of verl that was just imported.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.verl_.types import Passed

DEVICE = "cpu"
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # ports that the kernel assigns to connections
CHOOSES_PORT = "_get_master_addr_port"
FIRST_PORT = 20_000  # Ray's workers use the ports below
# Size of a block of ports. Worker groups that start in parallel choose ports before any of the groups binds a port, so
# each group gets a block of its own.
PORTS = 50
_tried: set[int] = set()


def selected() -> bool:
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == DEVICE


def register_training_engine(transformer_impl: ModuleType) -> None:
    """Import `platform.fsdp`, whose classes register themselves. This function uses no name of that module, because the
    module is still incomplete if its own import of verl has called this hook."""
    import verl_mas.engines.platform.fsdp  # noqa: F401


def patch_process_group(distributed: ModuleType) -> None:
    if selected():
        from verl_mas.engines.platform.process_group import patch

        patch(distributed)


def read_poll_interval(replay_buffer: ModuleType) -> None:
    """Make verl's replay buffer use the `poll_interval` of its `sampler_kwargs`; verl always polls every 2 s."""
    buffer = replay_buffer.ReplayBuffer
    verls = buffer.__init__

    def init(self: Passed, *args: object, **kwargs: Passed) -> None:
        verls(self, *args, **kwargs)
        self.poll_interval = self.sampler_kwargs.get("poll_interval", self.poll_interval)

    buffer.__init__ = init


def keep_ports(base: ModuleType) -> None:
    """Make verl search for free ports outside the kernel's range. verl binds a port only seconds after it has found the
    port, and by then the kernel may have assigned a port of its range to a connection."""
    verls = getattr(base.RayWorkerGroup, CHOOSES_PORT)

    def choose(self: object, pg: object, bundle_index: int = 0, master_port_range: list[int] | None = None) -> None:
        verls(self, pg, bundle_index, master_port_range or unused_ports())

    setattr(base.RayWorkerGroup, CHOOSES_PORT, choose)


def unused_ports() -> list[int] | None:
    """Return a range of ports that starts at a random port, so that runs on one machine try different ports; None if
    too few ports lie below the kernel's range."""
    last = int(RANGE.read_text().split()[0]) if RANGE.exists() else 0
    if last <= FIRST_PORT + 1000:
        return None
    port = SystemRandom().choice([port for port in range(FIRST_PORT, last - 100, PORTS) if port not in _tried])
    _tried.add(port)
    return [port, last]
