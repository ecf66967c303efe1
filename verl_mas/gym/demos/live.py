"""Starts a training run and displays its progress, read from the metrics that the run writes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich import progress
from rich.console import Console, Group, RenderableType
from rich.live import Live

from verl_mas.errors import RunFailed
from verl_mas.run_folder.metrics.file import Step, read_steps

POLL_S = 0.5
TAIL_LINES = 25
GRACE_S = 30.0  # seconds in which an interrupted run must exit


@dataclass
class DemoRun:
    """A training run in a process `python -m verl.trainer.main_ppo`, with its folder, log and metrics."""

    overrides: list[str]
    folder: Path
    steps_in_all: int
    resume: bool = False  # whether the run continues from the last checkpoint; it then keeps the earlier metrics
    table: Callable[[list[Step]], RenderableType] | None = None  # displayed below the progress bar
    _printed: int = -1

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def steps(self) -> list[Step]:
        """Read the metrics of all logged steps. The file also has the steps before a resume."""
        return read_steps(self.metrics)

    def watch(self, headline: str, console: Console) -> list[Step]:
        """Train to the end with a progress bar. `headline`: the metric next to the bar. Ctrl-C ends the run, too."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.resume:
            self.metrics.unlink(missing_ok=True)  # old metrics would be displayed until the first step
        if not console.is_terminal:
            console.print(f"training: {self.steps_in_all} steps, log in {self.log}")
        bar = self._bar(console)
        with self.log.open("a" if self.resume else "w") as log, Live(bar, console=console) as live:
            task = bar.add_task("starting Ray", total=self.steps_in_all, value="")
            process = self.start(log)
            try:
                while process.poll() is None:
                    time.sleep(POLL_S)
                    self._show(live, bar, task, headline)
            finally:
                _end(process)
            self._show(live, bar, task, headline)
        if process.returncode:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            raise RunFailed(f"the run failed (exit code {process.returncode}); its log ends:\n{tail}")
        return self.steps()

    def start(self, log: TextIO) -> subprocess.Popen[bytes]:
        """Start the training process."""
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *self.overrides]
        settings = {"VERL_FILE_LOGGER_PATH": str(self.metrics), "HYDRA_FULL_ERROR": "1", "OMP_NUM_THREADS": "1"}
        # Ray and TransferQueue then listen on loopback only; see docs/use/security.md.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Start a new session of processes, so that Ctrl-C reaches the run only through `_end`.
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | settings, start_new_session=True
        )

    def _show(self, live: Live, bar: progress.Progress, task: progress.TaskID, headline: str) -> None:
        steps = self.steps()
        if steps:
            values = [step.values[headline] for step in steps if headline in step.values]
            value = f"{headline} {values[-1]:.3f}" if values else ""
            bar.update(task, description="training", completed=steps[-1].number, value=value)
            if not live.console.is_terminal:
                self._print(live.console, steps, headline)
            if self.table:
                live.update(Group(bar, self.table(steps)))

    def _print(self, console: Console, steps: list[Step], headline: str) -> None:
        """Print a line per step, because without a terminal the bar is drawn only once, at the end."""
        for step in steps:
            if step.number > self._printed:
                value = f"  {headline} {step.values[headline]:.3f}" if headline in step.values else ""
                console.print(f"step {step.number} of {self.steps_in_all}{value}", highlight=False)
                self._printed = step.number

    def _bar(self, console: Console) -> progress.Progress:
        text, value = progress.TextColumn("{task.description}"), progress.TextColumn("{task.fields[value]}")
        times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
        columns = text, progress.BarColumn(), progress.MofNCompleteColumn(), value, *times
        return progress.Progress(*columns, console=console)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that still runs, first by SIGINT, then by killing its process group."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
