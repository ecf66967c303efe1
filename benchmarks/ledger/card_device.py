"""The module that replaces `torch.<device>` in a training process, whose `empty_cache` reports an event."""

from __future__ import annotations

from ledger import process
from verl_mas.engines.platform import cpu_device


def __getattr__(name: str) -> object:
    return getattr(cpu_device, name)


def empty_cache() -> None:
    process.report("empty_cache", empty_cache=True)
