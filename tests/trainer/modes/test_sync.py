"""Waiting for the tasks of a step in the synchronous mode, outside Ray."""

# ruff: noqa: SLF001  # methods that verl calls
from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_mas.trainer.modes.sync import MasTrainer
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.verl_ import data_plane


@pytest.fixture
def trainer(monkeypatch):
    """Make a trainer that has dispatched two tasks. `ended`: how many have ended at each poll. Also return the
    polls."""

    def make(*ended):
        answers, looks = iter(ended), []
        made = object.__new__(MasTrainer)
        made.replay_buffer = SimpleNamespace(poll_interval=0)
        monkeypatch.setattr(TeamTrainer, "prepare_step", lambda self: self._tasks_are_named(["1-0", "1-1"]))
        monkeypatch.setattr(TeamTrainer, "_sample", lambda self, tasks: (f"rows of {tasks}", {}))
        monkeypatch.setattr(data_plane, "ended", lambda uids: looks.append(list(uids)) or next(answers))
        made.prepare_step()
        return made, looks

    return make


def test_rows_are_listed_once_when_every_task_has_ended(trainer):
    made, looks = trainer(0, 1, 2)
    assert made._sample(2) == ("rows of 2", {}) and looks == [["1-0", "1-1"]] * 3


def test_tasks_that_were_sampled_are_not_asked_for_again(trainer):
    made, looks = trainer(2, 0, 2)
    made._sample(2)
    made._tasks_are_named(["1-0", "1-1"])  # a further round of a filter
    made._sample(2)
    assert looks == [["1-0", "1-1"]] * 3


def test_a_step_with_fewer_tasks_than_are_asked_for_is_left_to_verls_buffer(trainer):
    made, looks = trainer(2)
    assert made._sample(4) == ("rows of 4", {}) and looks == [["1-0", "1-1"]]
