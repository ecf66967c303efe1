"""Stage 6: measure the memory of two engines of real size and their two trainers on an 80 GB GPU during a team's step.

Nothing is computed. The stage proves that the memory of each part fits next to the other parts, and is all released.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

from proof.stage import Proof

# Kind of engine -> the package with which this kind releases its memory.
KINDS = {"vllm": "vllm", "sglang": "torch_memory_saver", "embedded": "torch"}
SERVING = ("together", "phases")
MOST_SHARE = 0.92


def two_at_real_size(proof: Proof) -> None:
    for kind, package in KINDS.items():
        missing = None if find_spec(package) else f"{package} is not installed"
        if proof.unless(missing, f"memory of {kind} engines"):
            for serving in SERVING:
                _step(proof, kind, serving)


def _step(proof: Proof, kind: str, serving: str) -> None:
    ended = proof.python("step_memory", kind, serving)
    events = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"event"')]
    proof.write("memory", kind=kind, serving=serving, events=events)
    name = f"{kind}, {serving}"
    most = max((event["share"] for event in events), default=0.0)
    proof.check(f"{name}: at most {MOST_SHARE} of the card at every event", 0 < most <= MOST_SHARE, most)
    late = [event["event"] for event in events if event["gib"] > event["most_gib"]]
    proof.check(f"{name}: every event within what is expected", bool(events) and not late, late)
