"""`PYTHONPATH=benchmarks python -m ledger`: record runs, and account for the memory of every GPU recipe.

--events FOLDER   read the recordings of an earlier call from this folder, or write them to it
--over            run a team that does not fit into the memory; its engine ends the run
VARIANT...        account for these recipes only, such as math/separate
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ledger import PLATFORM
from ledger.account import accounted, peaks
from ledger.events import Event
from ledger.runs import RUNS, Shape, arguments, environment, recorded
from ledger.sizes import Sizes
from ledger.variants import OVER, VARIANTS, sizes_of, team
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, START, SYNC, UPDATE
from verl_mas.planning.hardware import GIB

BENCHMARKS = Path(__file__).parents[1]
PHASES = (START, SYNC, ROLLOUT, LOG_PROBS, UPDATE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="ledger", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("variants", nargs="*", choices=[*VARIANTS, []], metavar="VARIANT")
    parser.add_argument("--events", type=Path)
    parser.add_argument("--over", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.events or Path(scratch)
        if chosen.over:
            return execute("two", folder / "over", sizes_of("two", together=OVER))
        for run in RUNS:
            if not (folder / run / "events.jsonl").exists() and execute(run, folder / run, sizes_of(run)):
                return 1
        events: dict[Shape, list[Event]] = {}
        for run in RUNS:
            events |= recorded(folder / run, run)
    over = [account_for(variant, events) for variant in chosen.variants or VARIANTS]
    return int(any(over))


def execute(run: str, folder: Path, sizes: Sizes) -> int:
    """Run the letters task with a new Ray cluster. Return the exit code."""
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "verl_mas.testing.letters", str(folder)], check=True)
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu", "+recipe=first_run/laptop"),
        *(f"data.train_files={folder}/train.parquet", f"data.val_files={folder}/test.parquet"),
        *(f"actor_rollout_ref.model.path={folder}/model", f"trainer.default_local_dir={folder}/checkpoints"),
        *("trainer.val_before_train=false", "trainer.logger=[console]", f"hydra.run.dir={folder}/hydra"),
        *(f"ray_kwargs.ray_init.num_gpus={len(RUNS[run])}",),
        f"ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM={PLATFORM}",
        *arguments(run),
    ]
    paths = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | environment(folder, sizes) | {"PYTHONPATH": paths}
    with (folder / "log.txt").open("w") as log:
        code = subprocess.run(command, env=variables, stdout=log, stderr=log, check=False).returncode
    text = (folder / "log.txt").read_text()
    if "ledger.account.Refused: " in text:
        print("\n".join(text[text.index("ledger.account.Refused: ") :].splitlines()[:2]))
    elif code:
        print(text[-6000:])
    return code


def account_for(variant: str, events: dict[Shape, list[Event]]) -> bool:
    """Print the peak memory in GiB, a line per engine. Return whether an event does not fit."""
    over = False
    for engine in ("vllm", "sglang"):
        of = team(*VARIANTS[variant]).on(engine)
        entries = accounted(events[of.shape], of.sizes)
        highest = peaks(entries)
        columns = ", ".join(f"{phase} {highest[phase, None] / GIB:.1f}" for phase in PHASES)
        wrong = next((entry for entry in entries if entry.wrong), None)
        print(f"{variant:24} {engine:7} {columns}; limit {of.sizes.limit / GIB:.1f}")
        if wrong:
            print(f"    {wrong}: {wrong.wrong}")
            over = True
    return over


if __name__ == "__main__":
    sys.exit(main())
