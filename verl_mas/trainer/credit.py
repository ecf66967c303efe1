"""The advantages of a run: its estimator, with the scores that it remembers from step to step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from verl_mas.advantage import AdvantageOptions, RunningScores
from verl_mas.config.run import Run
from verl_mas.data_plane import Rows
from verl_mas.trainer.filters import with_advantage
from verl_mas.trainer.running import running_state
from verl_mas.trainer.step import Columns, read_columns, step_advantages


class Credit:
    def __init__(self, run: Run, agents: Sequence[str]):
        self._estimator, self._agents = str(run.config.algorithm.adv_estimator), agents
        self._options = AdvantageOptions.from_config(run.mas.advantage)
        self.running = running_state(run)

    def of_step(self, columns: Columns, trained_on: Sequence[int]) -> tuple[Tensor, dict[str, float]]:
        """Advantages and diagnostics of these rows of a step, whose scores are remembered; the others get 0."""
        return self._of(columns, trained_on, self.running.scores if self.running else None)

    def teaching(self, rows: Rows, trained: Collection[str]) -> set[str]:
        """The uids of the tasks in which a row that is trained has an advantage. Scores of earlier steps take no part:
        a filter is refused with an estimator that remembers any."""
        columns = read_columns(rows)
        advantages, _ = self._of(columns, range(len(rows)), None)
        return with_advantage(columns, advantages, trained)

    def _of(
        self, columns: Columns, rows: Sequence[int], running: RunningScores | None
    ) -> tuple[Tensor, dict[str, float]]:
        return step_advantages(columns, self._estimator, self._options, self._agents, rows, running)
