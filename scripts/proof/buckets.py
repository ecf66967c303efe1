"""`python buckets.py DEVICE ROUNDS JOB`: two senders and two receivers at once; fails if weights cross or change."""

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

# The numbers of the first replicas of two policies on one GPU: what keeps their sockets apart.
REPLICAS = (0, 1)
BUCKET_MB = 1


def weights(replica: int, turn: int, device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Make weights for about five buckets: of several types and sizes, one size odd."""
    chance = torch.Generator().manual_seed(10 * turn + replica)
    for number, dtype in enumerate([torch.float32, torch.bfloat16, torch.float32, torch.bfloat16] * 5):
        data = torch.randn(1 << 17, generator=chance)[: (1 << 17) - number]
        yield f"layer.{number}", data.to(device, dtype)


def handle(job: str, replica: int) -> str:
    """Return the address of the socket as verl's vLLM engine and its trainer name it."""
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
            # The buffer is used again for the next bucket.
            found.update((name, tensor.clone()) for name, tensor in bucket)

        receiver = module.BucketedWeightReceiver(handle(job, replica), device=target, use_shm=device == "cpu")
        receiver.receive_weights(keep)
        expected = dict(weights(replica, turn, device))
        if found.keys() != expected.keys() or not all(torch.equal(found[name], expected[name]) for name in expected):
            raise SystemExit(f"replica {replica} got other weights in round {turn}")


def _verl() -> ModuleType:
    """verl's module, from its file: its package imports vLLM, which it does not need itself."""
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
        process.terminate()  # the peer of a failed process would wait
        process.join()
    failed = [process.exitcode for process in ends if process.exitcode]
    if not failed:
        sys.stdout.write(f"{rounds * len(REPLICAS)} transfers, each with its own weights\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
