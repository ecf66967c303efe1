"""What verl-mas does on a GPU, in one command of at most twenty minutes: `python scripts/gpu_proof.py`.

Eleven stages, each with a time limit of its own; a later stage runs whatever an earlier one found. Stage 10 needs two
GPUs. Stage 8 trains a team of a pretrained LLM, and has ten minutes more: `--model FOLDER`. docs/gpu.md says what each
proves. Beside the events (--out) it writes a page to post, and with stage 8 a file for `verl-mas plan --calibration`.
`--cpu` runs the same on the CPU platform, where what needs CUDA is reported as skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

from proof import engines, runs, weights
from proof.page import page
from proof.stage import NEEDS_CUDA, Proof, Skipped, Stage

LIMIT = 1200
OF_MODEL = 600
STAGES = [
    Stage(0, "installation, recipes and models", 60, runs.prepare),
    Stage(1, "one policy in float32, with a checkpoint", 80, runs.one_policy),
    Stage(2, "two policies share the GPU", 110, runs.two_policies),
    Stage(3, "trained, frozen and remote, on a cluster that runs already", 75, runs.three_kinds),
    Stage(4, "resuming stage 2, and an evaluation", 75, runs.resumed),
    Stage(5, "weights of two policies at once through verl's buckets", 30, weights.two_at_once),
    Stage(6, "memory of two engines at real size", 80, engines.two_at_real_size, needs_cuda=True),
    Stage(7, "padding, fixed micro batches, LoRA", 90, runs.variants),
    Stage(8, "a pretrained LLM learns in a team", OF_MODEL, runs.pretrained),
    Stage(9, "adapters of one base, asynchronous", 150, runs.adapters),
    Stage(10, "two policies, engines on a GPU of their own", 100, runs.apart),
    Stage(11, "an engine is killed, and the run resumes", 240, runs.killed),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("proof.jsonl"), help="JSON lines, one per event")
    parser.add_argument("--cpu", action="store_true", help="the same on the CPU platform, with ten times the time")
    parser.add_argument("--stages", default=",".join(str(stage.number) for stage in STAGES), help="for example 0,1,2")
    parser.add_argument("--folder", type=Path, help="for models, runs and logs; default: a temporary one")
    parser.add_argument("--model", type=Path, help="a chat model for stage 8, such as one of `verl-mas data smollm2`")
    arguments = parser.parse_args()
    chosen = {int(number) for number in arguments.stages.split(",")}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as temporary, arguments.out.open("w") as lines:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        model = arguments.model and arguments.model.resolve()
        calibration = arguments.out.with_name("calibration.json").resolve()
        proof = Proof(folder, lines, cpu=arguments.cpu, model=model, calibration=calibration)
        code = run([stage for stage in STAGES if stage.number in chosen], proof)
    events = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    arguments.out.with_suffix(".md").write_text(page(events))
    return code


def run(stages: list[Stage], proof: Proof) -> int:
    """0 if no stage failed."""
    slow = 10 if proof.cpu else 1
    end = time.monotonic() + slow * (LIMIT + (OF_MODEL if proof.model else 0))
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
    proof.write("summary", results=results)
    return int("failed" in results.values())


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
