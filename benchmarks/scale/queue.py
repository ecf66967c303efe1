"""A TransferQueue without Ray. Its controller and each of its storage units run in separate processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue.controller import TransferQueueController
from transfer_queue.interface import _maybe_create_tq_client
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from transfer_queue.utils import zmq_utils

from benchmarks.scale.curve import memory, processor_seconds

CONTROLLER, STORAGE = (each.__ray_metadata__.modified_class for each in (TransferQueueController, SimpleStorageUnit))


class Part:
    """A process of the queue, and its memory and processor time."""

    def __init__(self, kind: type, *args: object):
        here, there = multiprocessing.Pipe()
        self._pipe = here
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(kind, args, here, there))
        self._process.start()
        there.close()
        self.address = here.recv()
        self._before = memory(self.pid)
        self._used = processor_seconds(self.pid)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def mib(self) -> float:
        return memory(self.pid) - self._before

    def take(self) -> float:
        """Return the processor seconds since the last call."""
        now = processor_seconds(self.pid)
        used, self._used = now - self._used, now
        return used

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(kind: type, args: tuple[object, ...], theirs: Connection, pipe: Connection) -> None:
    theirs.close()
    served = kind(*args)
    pipe.send(served.get_zmq_server_info())
    with suppress(EOFError):  # raised if the benchmark has ended
        pipe.recv()
    os._exit(0)


class Queue:
    """A TransferQueue to which the functions of `transfer_queue` in this process are connected. `moved`: bytes that
    this process sent and received."""

    def __init__(self, controller: type = CONTROLLER, units: int = 1):
        self.controller = Part(controller)
        self.units = [Part(STORAGE, {"num_data_storage_units": units}) for _ in range(units)]
        self.moved = 0
        backend = {"zmq_info": {unit.address.id: unit.address for unit in self.units}}
        config: dict[str, Any] = {
            "controller": {"zmq_info": self.controller.address},
            "backend": {"storage_backend": "SimpleStorage", "SimpleStorage": backend},
        }
        self.client = _maybe_create_tq_client(OmegaConf.create(config, flags={"allow_objects": True}))

    def take(self) -> dict[str, float]:
        """Return the processor seconds by part and the bytes moved since the last call."""
        moved, self.moved = self.moved, 0
        storage = sum(unit.take() for unit in self.units)
        return {"controller": self.controller.take(), "storage": storage, "bytes": moved}

    def count(self, frames: list[Any]) -> None:
        self.moved += sum(zmq_utils.frame_nbytes(frame) for frame in frames)

    def close(self) -> None:
        tq.close()
        for part in (self.controller, *self.units):
            part.close()


@contextmanager
def queue(controller: type = CONTROLLER, units: int = 1) -> Iterator[Queue]:
    made = Queue(controller, units)
    encode, decode = zmq_utils.encode, zmq_utils.decode

    def encoded(message: object) -> list[Any]:
        frames = encode(message)
        made.count(frames)
        return frames

    def decoded(frames: list[Any]) -> object:
        made.count(frames)
        return decode(frames)

    zmq_utils.encode, zmq_utils.decode = encoded, decoded
    try:
        yield made
    finally:
        zmq_utils.encode, zmq_utils.decode = encode, decode
        made.close()
