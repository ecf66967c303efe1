"""Measure the time to the first rollout of the letters recipe, as a multiple of `import verl` on the same machine.

    python benchmarks/start_time.py [--runs 3] [--team]

The baseline is one `import verl`, because a run starts about ten processes and most of them import verl. The script
prints the ratio of the medians. `--team` starts two policies, each with a training process and an engine, and also
prints the parts of the last start. No other program should run at the same time.
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

from verl_mas.trainer import timeline

POLL_S = 0.2
# The title of verl's progress bar, which appears when the start is complete and the first rollout begins.
FIRST_ROLLOUT = "Training Progress"
TEAM = """
+mas=solver_verifier algorithm.adv_estimator=agent_grpo data.max_prompt_length=256
data.max_response_length=16 mas.policies={solver:{},verifier:{}}
mas.agents.solver.policy=solver mas.agents.verifier.policy=verifier
""".split()


def import_seconds() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import verl"], check=True)
    return time.perf_counter() - start


def start_seconds(folder: Path, letters: Path, team: list[str]) -> float:
    """Return the seconds from the command to its first rollout, and end the run there."""
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu", "+recipe=first_run/laptop"),
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        f"actor_rollout_ref.model.path={letters}/model",
        *("trainer.val_before_train=false", f"hydra.run.dir={folder}/hydra"),
        *(f"trainer.default_local_dir={folder}", *team),
    ]
    start = time.time()
    with (folder / "output").open("w") as output:
        run = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        while run.poll() is None:
            if team and (sampling := first_sampling(folder)):
                return sampling - start
            if not team and FIRST_ROLLOUT in (folder / "output").read_text():
                return time.time() - start
            time.sleep(POLL_S)
        raise SystemExit(f"the run ended before its first rollout: {(folder / 'output').read_text()[-2000:]}")
    finally:
        # Send the signal of Ctrl-C, because Ray then ends its own processes.
        run.send_signal(signal.SIGINT)
        run.wait()


def first_sampling(folder: Path) -> float | None:
    """Return the time at which the first sampling began, or None if no sampling has ended yet. It is read from the
    timeline, because a team shows no progress bar."""
    events = timeline.read_timeline(folder) if (folder / timeline.FILE).exists() else []
    return next((event.begin for event in events if event.event == timeline.SAMPLE), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--team", action="store_true", help="two policies in place of one without a team")
    given = parser.parse_args()
    runs, team = given.runs, TEAM if given.team else []
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        letters = Path(name) / "letters"
        made = [sys.executable, "-m", "verl_mas.testing.letters", str(letters)]
        subprocess.run(made, check=True, capture_output=True)
        pairs = [(start_seconds(Path(name) / str(i), letters, team), import_seconds()) for i in range(runs)]
        if team:
            print(timeline.start_seconds(timeline.read_timeline(Path(name) / str(runs - 1))))
    start, baseline = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"start to first rollout: {start:.1f} s; import verl: {baseline:.2f} s; ratio {start / baseline:.1f}")


if __name__ == "__main__":
    main()
