"""A platform that runs on the CPU and behaves like a GPU, so that its memory can be accounted for."""

from __future__ import annotations

from types import ModuleType

from ledger import card_device
from verl_mas.engines.platform.cpu import PlatformCPU


class OnCard(str):
    """The device name for verl. torch reads it as "cpu", but its type differs from the plain string of verl's
    `engine.to("cpu")`, which means an offload."""


class PlatformLedger(PlatformCPU):
    @property
    def device_name(self) -> str:
        return OnCard("cpu")

    @property
    def vendor_name(self) -> str:
        """The vendor under which the ledger registers its training engine with verl."""
        return "ledger"

    @property
    def device_module(self) -> ModuleType:
        device: ModuleType = card_device
        return device
