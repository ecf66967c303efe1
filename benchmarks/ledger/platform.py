"""The CPU as a GPU whose memory is accounted for."""

from __future__ import annotations

from types import ModuleType

from ledger import card_device
from verl_mas.engines.platform.cpu import PlatformCPU


class OnCard(str):
    """The name of the device for verl, which torch reads as "cpu". verl's `engine.to("cpu")` has the plain string."""


class PlatformLedger(PlatformCPU):
    @property
    def device_name(self) -> str:
        return OnCard("cpu")

    @property
    def vendor_name(self) -> str:
        """The device name for which verl finds our training engine."""
        return "ledger"

    @property
    def device_module(self) -> ModuleType:
        device: ModuleType = card_device
        return device
