"""Selection of a run's sessions for other tools."""

from collections import Counter

from view_runs import session, write_run

from verl_mas.results.formats.sessions import records_of
from verl_mas.results.sessions.run import open_run


def test_records_are_those_of_the_steps_and_damaged_ones_are_counted(tmp_path):
    run, counts = open_run(write_run(tmp_path, [session(step, f"{step}-0") for step in (1, 2, 3)])), Counter()
    records = records_of(run, "train", (2, 3), counts)
    assert next(records)["step"] == 2
    next((run.trajectories / "train").glob("000003-*")).write_text("cut")
    assert list(records) == []
    assert +counts == {"sessions": 1, "sessions skipped: damaged records": 1}
