"""How long a run takes to its first rollout: the letters recipe, as a multiple of `import verl` on the same machine.

    python benchmarks/start_time.py [--runs 3]

A run starts about ten processes one after the other, most of which import what verl imports: the baseline is one such
import, and the ratio is that of the medians. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# verl's progress bar: it is shown when everything is there and the first rollout begins.
FIRST_ROLLOUT = "Training Progress"


def import_seconds() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import verl"], check=True)
    return time.perf_counter() - start


def start_seconds(folder: Path, letters: Path) -> float:
    """From the command to its first rollout. It is ended there."""
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu", "+recipe=first_run/laptop"),
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        f"actor_rollout_ref.model.path={letters}/model",
        *("trainer.val_before_train=false", f"hydra.run.dir={folder}/hydra"),
    ]
    start = time.perf_counter()
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout
    try:
        for line in run.stdout:
            if FIRST_ROLLOUT in line:
                return time.perf_counter() - start
        raise SystemExit(f"the run ended before its first rollout: {' '.join(command)}")
    finally:
        # What a terminal sends on Ctrl-C: Ray then ends its own processes.
        run.send_signal(signal.SIGINT)
        run.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        letters = Path(name) / "letters"
        made = [sys.executable, "-m", "verl_mas.testing.letters", str(letters)]
        subprocess.run(made, check=True, capture_output=True)
        pairs = [(start_seconds(Path(name) / str(i), letters), import_seconds()) for i in range(runs)]
    start, baseline = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"start to first rollout: {start:.1f} s; import verl: {baseline:.2f} s; ratio {start / baseline:.1f}")


if __name__ == "__main__":
    main()
