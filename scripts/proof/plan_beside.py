"""Compare the memory that a run took on its GPU with the prediction of `verl-mas plan`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from statistics import mean

from proof.stage import Program, Proof

GIB = 1 << 30
# Share of a GPU's nominal size that is usable, as in verl_mas/planning/hardware.py.
USABLE = 0.99
CARD = "import torch; card = torch.cuda.get_device_properties(0); print(card.name, card.total_memory)"
# Name in `--assume` of `verl-mas plan` -> metric of a step that measures it.
MEASURED = {"response": "response_length/mean", "prompt": "prompt_length/mean"}


def compare(
    proof: Proof, taken: Mapping[str, int], arguments: list[str], steps: Mapping[int, Mapping[str, float]]
) -> None:
    """Compare `taken`, the GPU's bytes in each phase of a run, with a plan for rows of the same mean length."""
    # Query the GPU in another process, because in this process torch would keep a CUDA context on the GPU.
    (ended,) = proof.run(Program("card", [sys.executable, "-c", CARD]))
    size = ended.output.splitlines()[-1].rsplit(maxsplit=1)[-1]
    assumed = [
        f"--assume={name}={mean(found):.0f}"
        for name, key in MEASURED.items()
        if (found := [step[key] for step in steps.values() if key in step])
    ]
    gpus = f"--gpus=1x{int(size) / GIB / USABLE:.1f}"
    (planned,) = proof.run(
        Program("plan", [sys.executable, "-m", "verl_mas", "plan", *arguments, gpus, *assumed, "--json"])
    )
    write(proof, taken, estimates(planned.output))


def estimates(output: str) -> dict[str, float]:
    """Return for each phase the most GiB that the plan expects of any policy, for rows of average length."""
    # The command may log lines before and after the JSON.
    plan, _ = json.JSONDecoder().raw_decode(output[f"\n{output}".index("\n{") :])
    found: dict[str, float] = {}
    for policy in plan["policies"].values():
        for phase, gib in policy["expected"].items():
            # A policy is "waiting" while another policy trains, so this is not a phase of the whole GPU.
            if phase != "waiting":
                found[phase] = max(found.get(phase, 0.0), gib)
    return found


def write(proof: Proof, taken: Mapping[str, int], expected: Mapping[str, float]) -> None:
    rows = {
        phase: {"measured": round(held / GIB, 2), "planned": round(expected[phase], 2)}
        for phase, held in taken.items()
        if held and phase in expected
    }
    proof.check("every moment of the plan was measured", rows.keys() == expected.keys(), [*rows])
    proof.write("beside the plan", unit="GiB", moments=rows)
