"""`python step_memory.py KIND SERVING`: play one step of two engines and two trainers; print a JSON line per event.

Each engine and each trainer is a separate process, as in a run, and gets its orders (such as start, sleep, wake up and
pause) through a pipe. The memory is that of the whole card as its driver counts it, without the memory that was in use
before the step. On a card with more than 80 GB, a tensor fills the rest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

GIB = 1 << 30
CARD, WEIGHTS, CACHE, BUCKET = 80, 8, 24, 2
# GiB of a trainer of 1.5 billion parameters in float32: the parameters, their gradients and both of Adam's moments.
TRAINER = 24
# GiB that a process on the GPU always holds: its CUDA context and the rounding of its allocator.
PROCESS = 1


def _filled(gib: int) -> torch.Tensor:
    return torch.empty(gib * GIB, dtype=torch.uint8, device="cuda").fill_(1)


class Engine:
    """The memory of the embedded engine. While it sleeps, the weights are in host memory and the cache is dropped."""

    def __init__(self) -> None:
        self.weights = _filled(WEIGHTS)
        self.cache: torch.Tensor | None = _filled(CACHE)

    def sleep(self) -> None:
        self.weights, self.cache = self.weights.cpu(), None
        torch.cuda.empty_cache()

    pause = sleep

    def wake_weights(self) -> None:
        self.weights = self.weights.cuda()

    def wake_cache(self) -> None:
        self.cache = _filled(CACHE)


class SglangEngine(Engine):
    """The memory of SGLang: torch_memory_saver, with a copy of the weights in host memory, which verl enables."""

    def __init__(self) -> None:
        from torch_memory_saver import torch_memory_saver as saver

        self.saver = saver
        with saver.region(tag="weights", enable_cpu_backup=True):
            self.weights = _filled(WEIGHTS)
        with saver.region(tag="kv_cache"):
            self.cache = _filled(CACHE)

    def sleep(self) -> None:
        for tag in ("kv_cache", "weights"):
            self.saver.pause(tag)

    pause = sleep

    def wake_weights(self) -> None:
        self.saver.resume("weights")

    def wake_cache(self) -> None:
        self.saver.resume("kv_cache")


class VllmEngine(Engine):
    """The memory of vLLM's allocator. `sleep` (vLLM's level 2, after the rollout) drops the weights; `pause` (level 1,
    between time slices) keeps them in host memory."""

    def __init__(self) -> None:
        from vllm.device_allocator.cumem import CuMemAllocator

        self.allocator = CuMemAllocator.get_instance()
        with self.allocator.use_memory_pool(tag="weights"):
            self.weights = _filled(WEIGHTS)
        with self.allocator.use_memory_pool(tag="kv_cache"):
            self.cache = _filled(CACHE)

    def sleep(self) -> None:
        self.allocator.sleep(offload_tags=())

    def pause(self) -> None:
        self.allocator.sleep(offload_tags=("weights",))

    def wake_weights(self) -> None:
        self.allocator.wake_up(tags=["weights"])

    def wake_cache(self) -> None:
        self.allocator.wake_up(tags=["kv_cache"])


ENGINES = {"embedded": Engine, "sglang": SglangEngine, "vllm": VllmEngine}


class Trainer:
    """The memory of a trainer: its state during the update, and the bucket through which it sends weights. At other
    times it holds nothing, because the state is offloaded."""

    held: torch.Tensor | None = None

    def update(self) -> None:
        self.held = _filled(TRAINER)

    def bucket(self) -> None:
        self.held = _filled(BUCKET)

    def release(self) -> None:
        self.held = None
        torch.cuda.empty_cache()


def serve(kind: str, orders: Connection) -> None:
    """Run a process that carries out orders. The order `start` makes its trainer or engine."""
    made: Trainer | Engine | None = None
    while order := orders.recv():
        if order == "start":
            made = Trainer() if kind == "trainer" else ENGINES[kind]()
        else:
            getattr(made, order)()
        torch.cuda.synchronize()
        orders.send(None)


class Step:
    """The processes of a step. It gives them orders and measures the memory of the card."""

    def __init__(self, kind: str):
        self.ends: dict[str, Connection] = {}
        total = torch.cuda.mem_get_info()[1]
        ballast = max(total - CARD * GIB, 0)
        self._ballast = torch.empty(ballast, dtype=torch.uint8, device="cuda")
        self._base = torch.cuda.mem_get_info()[0]
        self._at = time.monotonic()
        for name, what in (("trainer of a", "trainer"), ("a", kind), ("trainer of b", "trainer"), ("b", kind)):
            self.ends[name] = _process(what)

    def tell(self, name: str, *orders: str) -> None:
        for order in orders:
            self.ends[name].send(order)
            self.ends[name].recv()

    def measure(self, event: str, most: float) -> None:
        """Print the memory after an order. `most`: the highest expected GiB, without the memory that each process
        always holds."""
        held = (self._base - torch.cuda.mem_get_info()[0]) / GIB
        line = {
            "event": event,
            "gib": round(held, 2),
            "most_gib": most + PROCESS * len(self.ends),
            "share": round(held / CARD, 3),
            "seconds": round(time.monotonic() - self._at, 2),
        }
        self._at = time.monotonic()
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _process(kind: str) -> Connection:
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(kind, there), daemon=True)
    with _preloaded(kind):
        process.start()
    return here


def _preloaded(kind: str) -> AbstractContextManager[object]:
    """Return a context for the start of a process of this kind. With it, torch_memory_saver can replace CUDA's
    functions in a process of SGLang."""
    if kind != "sglang":
        return nullcontext()
    from torch_memory_saver import configure_subprocess

    context: AbstractContextManager[object] = configure_subprocess()
    return context


def synchronise(step: Step, name: str, beside: int) -> None:
    """Wake up the engine of a policy and send it weights. `beside`: GiB that other engines hold meanwhile."""
    step.tell(name, "wake_weights")
    step.tell(f"trainer of {name}", "bucket")
    step.measure(f"{name} gets weights", beside + WEIGHTS + BUCKET)
    step.tell(f"trainer of {name}", "release")
    step.tell(name, "wake_cache")
    step.measure(f"{name} is awake", beside + WEIGHTS + CACHE)


def together(step: Step) -> None:
    synchronise(step, "a", 0)
    synchronise(step, "b", WEIGHTS + CACHE)
    for name, left in (("a", WEIGHTS + CACHE), ("b", 0)):
        step.tell(name, "sleep")
        step.measure(f"{name} sleeps", left)


def phases(step: Step) -> None:
    synchronise(step, "a", 0)
    step.tell("a", "pause")
    synchronise(step, "b", 0)
    for awake, other in (("b", "a"), ("a", "b")):
        step.tell(awake, "pause")
        step.measure(f"{awake} is paused", 0)
        step.tell(other, "wake_weights", "wake_cache")
        step.measure(f"{other} has its time slice", WEIGHTS + CACHE)
    step.tell("b", "sleep")
    step.measure("b sleeps", 0)


SERVING: dict[str, Callable[[Step], None]] = {"together": together, "phases": phases}


def run(step: Step, serving: str) -> None:
    for name in ("a", "b"):
        step.tell(f"trainer of {name}", "start")
        step.tell(name, "start")
        step.measure(f"{name} has started", WEIGHTS + CACHE)
        step.tell(name, "sleep")
    step.measure("all sleep", 0)
    SERVING[serving](step)
    for name in ("a", "b"):
        step.tell(f"trainer of {name}", "update")
        step.measure(f"update of {name}", TRAINER)
        step.tell(f"trainer of {name}", "release")
    step.measure("the end of the step", 0)


if __name__ == "__main__":
    run(Step(sys.argv[1]), sys.argv[2])
