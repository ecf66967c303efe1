"""Functions of `torch.<device>` that verl uses, for the CPU. Names that are missing here are looked up in torch.cpu."""

import ctypes
import resource

import psutil
import torch

manual_seed = manual_seed_all = torch.manual_seed
get_rng_state, set_rng_state = torch.get_rng_state, torch.set_rng_state
# A function of glibc, which other C libraries do not have.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", int)


def __getattr__(name: str) -> object:
    return getattr(torch.cpu, name)


def get_device_name(device: object = None) -> str:
    return "CPU"


def memory_allocated(device: object = None) -> int:
    """Return the resident memory of this process, because torch does not count allocations on the CPU."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def max_memory_allocated(device: object = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def mem_get_info(device: object = None) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def empty_cache() -> None:
    """Make the C library return freed memory to the system. After an update, this can be up to a gigabyte."""
    _trim(0)


def ipc_collect() -> None:
    """Do nothing: there is no inter-process device memory to collect."""


def reset_peak_memory_stats(device: object = None) -> None:
    """Do nothing: the kernel's peak of a process cannot be reset."""
