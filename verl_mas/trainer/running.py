"""Saves an estimator's running scores in the checkpoints of a run, and loads them when the run resumes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verl_mas.advantage import ESTIMATORS, RunningScores, options_for
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning, raise_all
from verl_mas.run_folder.checkpoints import choices
from verl_mas.workflow.base import agents_of

# A child of verl's logger, which has the handler in the trainer's process.
logger = logging.getLogger(f"verl.{__name__}")

RUNNING_FILE = "running_scores.json"
_SCORES = "scores"


@dataclass
class RunningState:
    """The running scores of a run. `of` names the team, estimator and weighting that they belong to: a run that differs
    in one of them cannot use the scores."""

    of: Mapping[str, object]
    scores: RunningScores = field(default_factory=RunningScores)

    def save(self, folder: Path) -> None:
        (folder / RUNNING_FILE).write_text(json.dumps({**self.of, _SCORES: self.scores.to_list()}, indent=1))

    def load(self, folder: Path) -> None:
        """Load the running scores from a checkpoint's folder. Raises the ConfigErrors that `problems` yields."""
        problems = list(self.problems(folder))
        raise_all(problem for problem in problems if isinstance(problem, ConfigError))
        for warning in problems:
            logger.warning("%s", warning)
        if not problems:
            _, self.scores = _read(folder)

    def problems(self, folder: Path) -> Iterator[ConfigError | ConfigWarning]:
        """Yield errors if a run cannot resume with the scores in a folder, or a warning if the scores restart."""
        path = folder / RUNNING_FILE
        if not path.exists():
            yield ConfigWarning(
                f"{folder} has no {RUNNING_FILE}",
                reason="its run kept none; they restart with this run, as agent/<role>/group/running_count shows",
                fix="resume from a checkpoint that has them, unless the estimator or its shrinkage is new to the run",
            )
            return
        try:
            saved, _ = _read(folder)
        except (ValueError, TypeError, KeyError):
            value = f"{path} cannot be read"
            rule = "it holds the running scores of a run as JSON"
            fix = choices(folder.parent, without=folder)
            yield ConfigError(value, rule=rule, fix=fix)
            return
        for key, own in self.of.items():
            if saved.get(key) != own:
                yield ConfigError(
                    f"{path} is of {key}={saved.get(key)}, and this run has {own}",
                    rule="running scores are compared with scores of the same team, estimator and weighting",
                    fix="have the same as in that run; or remove the file, and they restart; or start a new run with "
                    "trainer.resume_mode=disable",
                )


def running_state(run: Run) -> RunningState | None:
    """Create the state of a run whose estimator remembers scores; None for other estimators."""
    name = str(run.config.algorithm.adv_estimator)
    # `check_estimator` refuses unknown estimators.
    options = options_for(name, run.mas.advantage) if name in ESTIMATORS else None
    if options is None or not ESTIMATORS[name].reads_running(options):
        return None
    roles = sorted({member.role for member in agents_of(run.mas).values()})
    of = {"algorithm.adv_estimator": name, "mas.advantage.weighting": options.weighting, "roles": roles}
    return RunningState(of)


def _read(folder: Path) -> tuple[Mapping[str, object], RunningScores]:
    """Read the scores of a checkpoint, and the team, estimator and weighting that they belong to."""
    saved = json.loads((folder / RUNNING_FILE).read_bytes())
    return saved, RunningScores.from_list(saved[_SCORES])
