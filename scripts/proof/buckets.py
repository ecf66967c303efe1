"""`python buckets.py DEVICE ROUNDS JOB`: run two senders and two receivers of weights at once.

Fails if a receiver gets weights of the other sender, or if weights change on the way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import connection
from pathlib import Path
from types import ModuleType

import torch
from torch import multiprocessing

# The replica numbers of two policies on one GPU. They differ, so the sockets have different addresses.
REPLICAS = (0, 1)
BUCKET_MB = 1


def weights(replica: int, turn: int, device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Make weights for about ten buckets, of two types and 20 sizes, half of them odd."""
    chance = torch.Generator().manual_seed(10 * turn + replica)
    for number, dtype in enumerate([torch.float32, torch.bfloat16, torch.float32, torch.bfloat16] * 5):
        data = torch.randn(1 << 17, generator=chance)[: (1 << 17) - number]
        yield f"layer.{number}", data.to(device, dtype)


def handle(job: str, replica: int) -> str:
    """Return the socket's address in the form that verl's vLLM engine and trainer use."""
    return f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-0.sock"


def send(device: str, rounds: int, job: str, replica: int) -> None:
    module = _verl()
    for turn in range(rounds):
        sender = module.BucketedWeightSender(handle(job, replica), bucket_size_mb=BUCKET_MB, use_shm=device == "cpu")
        asyncio.run(sender.async_send_weights(weights(replica, turn, device)))


def receive(device: str, rounds: int, job: str, replica: int) -> None:
    module = _verl()
    target = torch.device("cpu") if device == "cpu" else torch.device("cuda", 0)
    for turn in range(rounds):
        found: dict[str, torch.Tensor] = {}

        def keep(bucket: list[tuple[str, torch.Tensor]], last: bool, found: dict[str, torch.Tensor] = found) -> None:
            # Clone each tensor, because the next bucket overwrites the buffer.
            found.update((name, tensor.clone()) for name, tensor in bucket)

        receiver = module.BucketedWeightReceiver(handle(job, replica), device=target, use_shm=device == "cpu")
        receiver.receive_weights(keep)
        expected = dict(weights(replica, turn, device))
        if found.keys() != expected.keys() or not all(torch.equal(found[name], expected[name]) for name in expected):
            raise SystemExit(f"replica {replica} got other weights in round {turn}")


def _verl() -> ModuleType:
    """Load verl's module from its file. An ordinary import would also import vLLM with the module's package, and the
    module does not need vLLM."""
    import verl

    file = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    spec = spec_from_file_location("bucketed_weight_transfer", file)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    device, rounds, job = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    spawn = multiprocessing.get_context("spawn")
    ends = [
        spawn.Process(target=work, args=(device, rounds, job, replica))
        for replica in REPLICAS
        for work in (send, receive)
    ]
    for process in ends:
        process.start()
    waiting = {process.sentinel: process for process in ends}
    while waiting and not any(process.exitcode for process in ends):
        for sentinel in connection.wait([*waiting]):
            waiting.pop(sentinel).join()
    for process in ends:
        process.terminate()  # otherwise the peer of a failed process would wait indefinitely
        process.join()
    failed = [process.exitcode for process in ends if process.exitcode]
    if not failed:
        sys.stdout.write(f"{rounds * len(REPLICAS)} transfers, each with its own weights\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
