"""Names that verl imports; it uses the first."""

from __future__ import annotations

import pickle


class MultiprocessingSerializer:
    """On the CPU the tensors themselves are sent."""

    @staticmethod
    def serialize(value: object) -> bytes:
        return pickle.dumps(value)

    @staticmethod
    def deserialize(data: bytes) -> object:
        return pickle.loads(data)


assert_pkg_version = is_cuda = kill_process_tree = set_prometheus_multiproc_dir = set_ulimit = None
