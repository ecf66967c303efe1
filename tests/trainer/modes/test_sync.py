"""Waiting for the tasks of a step in the synchronous mode, outside Ray."""

from types import SimpleNamespace

from verl_mas.trainer.modes.sync import MasTrainer
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.verl_ import data_plane

TASKS = ["1-0", "1-1"]


def test_rows_are_listed_once_when_every_task_that_is_not_sampled_yet_has_ended(monkeypatch):
    made, polls, ended = object.__new__(MasTrainer), [], iter([0, 1, 2, 0, 2, 2])
    made.replay_buffer = SimpleNamespace(poll_interval=0)
    monkeypatch.setattr(TeamTrainer, "prepare_step", lambda self: self._tasks_are_named(TASKS))
    monkeypatch.setattr(TeamTrainer, "_sample", lambda self, tasks: (f"rows of {tasks}", {}))
    monkeypatch.setattr(data_plane, "ended", lambda uids: polls.append(list(uids)) or next(ended))
    made.prepare_step()
    assert made._sample(2) == ("rows of 2", {}) and polls == [TASKS] * 3
    made._tasks_are_named(TASKS)  # a further round of a filter
    made._sample(2)
    assert polls == [TASKS] * 5
    made._tasks_are_named(TASKS)
    assert made._sample(4) == ("rows of 4", {}) and len(polls) == 6, "verl's buffer waits for the other tasks"
