"""Stage 5: verl's bucketed weight transfer, used by two policies on one GPU at the same time.

verl sends weights to its vLLM engine in this way. The transfer uses CUDA IPC on a GPU and shared memory on the CPU.
"""

from __future__ import annotations

import os

from proof.stage import Proof

ROUNDS = 3


def two_at_once(proof: Proof) -> None:
    device = "cpu" if proof.cpu else "cuda"
    ended = proof.python("buckets", device, str(ROUNDS), f"{os.getpid()}")
    proof.check("every engine has the weights of its own policy", f"{2 * ROUNDS} transfers" in ended.output)
