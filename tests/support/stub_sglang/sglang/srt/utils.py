"""Helpers that verl imports."""

from __future__ import annotations

import pickle


class MultiprocessingSerializer:
    """SGLang sends handles of GPU memory; on the CPU the tensors themselves travel."""

    @staticmethod
    def serialize(value: object) -> bytes:
        return pickle.dumps(value)

    @staticmethod
    def deserialize(data: bytes) -> object:
        return pickle.loads(data)


def is_cuda() -> bool:
    return False


def assert_pkg_version(package: str, least: str, message: str) -> None: ...


def set_prometheus_multiproc_dir() -> None: ...


def set_ulimit() -> None: ...


def kill_process_tree(process: int) -> None: ...
