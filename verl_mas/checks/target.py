"""The machines of a run that is checked elsewhere: `--gpus` of `verl-mas check` and `verl-mas plan`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from verl_mas.planning.hardware import Hardware

_TARGET: ContextVar[Hardware | None] = ContextVar("target", default=None)


def target() -> Hardware | None:
    """None: the run is on this machine, or joins a cluster."""
    return _TARGET.get()


@contextmanager
def run_on(hardware: Hardware | None) -> Iterator[None]:
    token = _TARGET.set(hardware)
    try:
        yield
    finally:
        _TARGET.reset(token)
