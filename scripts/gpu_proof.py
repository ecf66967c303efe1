"""Prove what verl-mas does on a GPU, with one command of fourteen minutes: `python scripts/gpu_proof.py`.

`--order short` has the stages that prove most in fourteen minutes on a GPU; `--order long` has checkpoints, resuming,
killed processes and a pretrained LLM (`--model FOLDER`). Each stage has its own time limit, and a stage runs even if an
earlier stage failed. benchmarks/gpu/PROOF.md says what each stage proves. The events go to the file of `--out`. Next to
it, a page in Markdown, to post, is written after every stage. `--cpu` runs the same stages on the CPU platform with
small models, and reports the checks that need CUDA as skipped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from proof import engines, long, short, weights
from proof.page import page
from proof.stage import NEEDS_CUDA, Proof, Skipped, Stage

# Time limit of each order in seconds. `OF_MODEL` is added if there is a pretrained model.
LIMITS = {"short": 840, "long": 1200}
OF_MODEL = 600
ORDERS = {
    "short": [
        Stage(0, "installation, with and without a CUDA compiler", 70, short.installed),
        Stage(1, "SGLang: together, in phases, adapters", 210, short.sglang),
        Stage(2, "1.7B and 4B: a step's parts, memory beside the plan", 215, short.pair),
        Stage(3, "1.7B on every path of the trainer", 190, short.paths),
        Stage(4, "one agent beside verl's own trainer, step by step", 155, short.stock),
    ],
    "long": [
        Stage(0, "installation, recipes and models", 60, long.prepare),
        Stage(1, "one policy in float32, with a checkpoint", 80, long.one_policy),
        Stage(2, "two policies share the GPU", 110, long.two_policies),
        Stage(3, "trained, frozen and remote, on a cluster that runs already", 75, long.three_kinds),
        Stage(4, "resuming stage 2, and an evaluation", 75, long.resumed),
        Stage(5, "weights of two policies at once through verl's buckets", 30, weights.two_at_once),
        Stage(6, "memory of two engines at real size", 80, engines.two_at_real_size, needs_cuda=True),
        Stage(7, "padding, fixed micro batches, LoRA", 90, long.variants),
        Stage(8, "a pretrained LLM learns in a team", OF_MODEL, long.pretrained),
        Stage(9, "adapters of one base, asynchronous", 150, long.adapters),
        Stage(10, "two policies, engines on a GPU of their own", 100, long.apart),
        Stage(11, "an engine is killed, and the run resumes", 240, long.killed),
    ],
}
# The models of the short order take 12 GiB, so 16 GiB must be free to keep them in memory.
IN_MEMORY, IN_MEMORY_GIB = Path("/dev/shm"), 16
OPTIONS: dict[str, dict[str, Any]] = {
    "order": {"choices": ORDERS, "default": "short", "help": "the stages; default: short"},
    "stages": {"help": "only these stages of the order, for example 0,1,2"},
    "out": {"type": Path, "default": Path("proof.jsonl"), "help": "JSON lines, one per event"},
    "cpu": {"action": "store_true", "help": "the same on the CPU platform, with ten times the time"},
    "folder": {"type": Path, "help": "for models, runs and logs; default: a temporary one, in memory if it has room"},
    "model": {"type": Path, "help": "a chat model for stage 8 of the long order, as `verl-mas data smollm2` has"},
    "sglang-python": {"default": sys.executable, "help": "the Python of an environment with SGLang; default: this one"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, settings in OPTIONS.items():
        parser.add_argument(f"--{option}", **settings)
    arguments = parser.parse_args()
    stages = ORDERS[arguments.order]
    if arguments.stages:
        chosen = {int(number) for number in arguments.stages.split(",")}
        stages = [stage for stage in stages if stage.number in chosen]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="gpu-proof-", dir=in_memory()) as temporary,
        arguments.out.open("w") as lines,
    ):
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        proof = Proof(
            folder,
            lines,
            cpu=arguments.cpu,
            model=arguments.model and arguments.model.resolve(),
            sglang=arguments.sglang_python,
        )
        return run(stages, proof, LIMITS[arguments.order])


def in_memory() -> Path | None:
    """Return a folder in memory, where models are read and written fastest, or None if it has no room."""
    free = shutil.disk_usage(IN_MEMORY).free if IN_MEMORY.is_dir() else 0
    return IN_MEMORY if free >= IN_MEMORY_GIB << 30 else None


def run(stages: list[Stage], proof: Proof, limit: float) -> int:
    """Run the stages of an order. Return 0 if no stage failed."""
    slow = 10 if proof.cpu else 1
    end = time.monotonic() + slow * (limit + (OF_MODEL if proof.model else 0))
    results = {}
    for stage in stages:
        start = time.monotonic()
        proof.begin(stage.number, min(start + slow * stage.seconds, end))
        proof.write("start", title=stage.title)
        status = _status(stage, proof)
        results[stage.number] = status
        seconds = round(time.monotonic() - start, 1)
        proof.write("end", status=status, seconds=seconds, passed=proof.passed, failed=proof.failed)
        sys.stdout.write(f"{stage.number} {stage.title}: {status} ({proof.passed} checks, {seconds} s)\n")
        sys.stdout.flush()
        write_page(Path(proof.lines.name))
    proof.write("summary", results=results)
    return int("failed" in results.values())


def write_page(events: Path) -> None:
    events.with_suffix(".md").write_text(page([json.loads(line) for line in events.read_text().splitlines()]))


def _status(stage: Stage, proof: Proof) -> str:
    try:
        if stage.needs_cuda and proof.cpu:
            raise Skipped(NEEDS_CUDA)
        stage.work(proof)
    except Skipped as skipped:
        return f"skipped: {skipped}"
    except Exception:  # noqa: BLE001  recorded, and the later stages run
        proof.check("the stage ends", False, traceback.format_exc())
    return "failed" if proof.failed or not proof.passed else "passed"


if __name__ == "__main__":
    sys.exit(main())
