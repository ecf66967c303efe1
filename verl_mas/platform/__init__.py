"""The CPU as a platform of verl: `+platform=cpu`, or VERL_PLATFORM=cpu. Never chosen by auto-detection. On every
platform, ports for verl's processes, log-probs in blocks, and the interval of its replay buffer.

`verl_mas.plugin` names the functions here as hooks; each gets the module of verl that was just imported.
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
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # What the kernel gives to connections
CHOOSES_PORT = "_get_master_addr_port"
FIRST_PORT = 20_000  # Ray's workers have those below
# Worker groups that start side by side choose their ports before any of them uses its own: each tries others.
PORTS = 50
_tried: set[int] = set()


def selected() -> bool:
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == DEVICE


def register_training_engine(transformer_impl: ModuleType) -> None:
    """The classes register themselves: their module may be what imports verl's, and then is not complete yet."""
    import verl_mas.platform.fsdp  # noqa: F401


def patch_process_group(distributed: ModuleType) -> None:
    if selected():
        from verl_mas.platform.process_group import patch

        patch(distributed)


def read_poll_interval(replay_buffer: ModuleType) -> None:
    """verl's buffer looks every 2 s whether the rollout has ended, also where its `sampler_kwargs` say otherwise."""
    buffer = replay_buffer.ReplayBuffer
    verls = buffer.__init__

    def init(self: Passed, *args: object, **kwargs: Passed) -> None:
        verls(self, *args, **kwargs)
        self.poll_interval = self.sampler_kwargs.get("poll_interval", self.poll_interval)

    buffer.__init__ = init


def keep_ports(base: ModuleType) -> None:
    """verl finds a port that is free and uses it seconds later, when the kernel may have given it to a connection. So
    it looks where the kernel never does."""
    verls = getattr(base.RayWorkerGroup, CHOOSES_PORT)

    def choose(self: object, pg: object, bundle_index: int = 0, master_port_range: list[int] | None = None) -> None:
        verls(self, pg, bundle_index, master_port_range or unused_ports())

    setattr(base.RayWorkerGroup, CHOOSES_PORT, choose)


def unused_ports() -> list[int] | None:
    """A range, from a random port on, so that runs of one machine try different ones; None if there is no such port."""
    last = int(RANGE.read_text().split()[0]) if RANGE.exists() else 0
    if last <= FIRST_PORT + 1000:
        return None
    port = SystemRandom().choice([port for port in range(FIRST_PORT, last - 100, PORTS) if port not in _tried])
    _tried.add(port)
    return [port, last]
