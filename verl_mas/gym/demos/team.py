"""Base class of team demos. A demo makes its data and its model once, starts or resumes a run, displays the run's
progress, and prints a report at the end."""

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from verl_mas.cli import data
from verl_mas.config.compose import compose
from verl_mas.data.dataset import MANIFEST
from verl_mas.errors import ConfigError
from verl_mas.gym.demos.live import DemoRun
from verl_mas.results.sessions.reader import read_sessions
from verl_mas.results.sessions.report import report
from verl_mas.results.sessions.run import open_run
from verl_mas.results.sessions.view import ViewOptions, write_view
from verl_mas.run_folder.checkpoints import latest
from verl_mas.run_folder.disk import write_whole
from verl_mas.run_folder.metrics.file import Step, series
from verl_mas.run_folder.records import Record
from verl_mas.util.text import sparkline

Curves: TypeAlias = Mapping[str, Mapping[str, str | float]]
STEPS = "trainer.total_training_steps"


class TeamDemo:
    """Runs a recipe for a laptop in the demo's own folder. Thus the demo and a run of the recipe do not resume each
    other's checkpoints."""

    title: ClassVar[str]
    data: ClassVar[tuple[str, ...]]  # arguments of `verl-mas data`, which makes the rows and the model
    recipe: ClassVar[str]
    folder: ClassVar[Path]
    steps: ClassVar[int]
    overrides: ClassVar[tuple[str, ...]] = ()  # overrides of the recipe; the user's overrides come after these
    source: ClassVar[str]  # data source of the held-out tasks; the tasks of the control have another data source
    # The success metric of a validation. The metrics pass@1/low and pass@1/high, which have the same prefix, are the
    # bounds of its confidence interval.
    success: ClassVar[str]
    solved: ClassVar[str]  # printed after the value of `success`: `0.750 of the held-out tasks right`
    measured: ClassVar[Curves]  # the table's rows: measure -> name -> key of a metric, or a constant

    def drawn(self, session: Record) -> str:
        """Format a session as a line of text."""
        raise NotImplementedError

    def draw(self, step: int) -> str:
        """Draw five sessions of a validation, on the same tasks at every step."""
        sessions = read_sessions(self.folder / "checkpoints" / "trajectories", validate=True, step=step)
        own = {
            session["task"]["index"]: session for session in sessions if session["task"]["data_source"] == self.source
        }
        return "\n".join(self.drawn(own[index]) for index in random.Random(0).sample(sorted(own), 5))

    def run(self, overrides: list[str], console: Console, *, fresh: bool = False) -> None:
        """Train to the end, from the last checkpoint if there is one. `fresh` deletes the folder of the demo first."""
        overrides = [f"{STEPS}={self.steps}", *self.overrides, *overrides]
        steps_in_all = _steps_in_all(overrides)
        arguments = [
            *("+platform=cpu", f"+recipe={self.recipe}"),
            *(f"data.train_files={self.folder}/train.parquet", f"data.val_files={self.folder}/test.parquet"),
            f"actor_rollout_ref.model.path={self.folder}/model",
            f"trainer.default_local_dir={self.folder}/checkpoints",
            *overrides,
        ]
        compose(arguments)  # invalid overrides raise an error here, before files are deleted and a model is made
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        console.print(self.title)
        self.prepare(console)
        checkpoint = latest(self.folder / "checkpoints")
        done = checkpoint.step if checkpoint else 0
        training = DemoRun(
            overrides=arguments,
            folder=self.folder,
            steps_in_all=steps_in_all,
            resume=done > 0,
            table=self.table,
        )
        if done < steps_in_all:
            if done:
                console.print(f"resumes from step {done}; --fresh starts over")
            training.watch(self.success, console)
        else:
            console.print(f"already trained to step {done}; --fresh starts over")
        self._report(training, training.steps(), console)

    def prepare(self, console: Console) -> None:
        """Make data and model by `verl-mas data`, unless an earlier demo has made them."""
        if (self.folder / MANIFEST).exists():
            return
        disable_progress_bar()
        arguments = [*self.data, "--out", str(self.folder)]
        console.print(f"verl-mas data {' '.join(arguments)}", highlight=False)
        data.main([*arguments, "--force"])  # without --force, files of an interrupted demo would be refused

    def table(self, steps: list[Step]) -> Table:
        """Make a table with the last value and the curve of every metric."""
        grid = Table(box=None, show_header=False)
        for measured, of in self.measured.items():
            for who, key in of.items():
                values = [key] if isinstance(key, float) else series(steps, key)[1]
                if values:
                    grid.add_row(measured, who, f"{values[-1]:.2f}", sparkline(values))
        return grid

    def _report(self, run: DemoRun, steps: list[Step], console: Console) -> None:
        pass_at_1 = self.success.partition("acc/mean@")[0] + "pass@1"
        low, high = f"{pass_at_1}/low", f"{pass_at_1}/high"
        validated = [step for step in steps if self.success in step.values]
        for when, step in (("before", validated[0]), ("after", validated[-1])):
            values = step.values
            interval = f" (95 % interval {values[low]:.3f} to {values[high]:.3f})" if low in values else ""
            console.print(f"\n{when}: {values[self.success]:.3f} of {self.solved}{interval}")
            console.print(self.draw(step.number), markup=False, highlight=False)
        trained = open_run(self.folder / "checkpoints")
        text = report(trained)
        console.print("\n" + "\n".join(text.says()), markup=False, highlight=False)
        page = self.folder / "report.html"
        write_whole(page, text.html())
        files = [("report", page), ("metrics", trained.metrics), ("log", run.log)]
        if trained.trajectories is not None:
            view, _ = write_view(trained.folder, ViewOptions(force=True))
            files += [("view", view), ("sessions", trained.trajectories)]
        console.print("\n" + "\n".join(f"{what:8} {file}" for what, file in files), markup=False, highlight=False)


def _steps_in_all(overrides: list[str]) -> int:
    """Return the number of training steps, which the last override of STEPS sets."""
    *_, steps = (text.partition("=")[2] for text in overrides if text.lstrip("+").startswith(f"{STEPS}="))
    if not steps.isdecimal() or int(steps) < 1:
        raise ConfigError(f"{STEPS}={steps}", rule="a whole number, at least 1", fix="leave it out")
    return int(steps)
