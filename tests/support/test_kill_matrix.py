from __future__ import annotations

import kill_matrix

from verl_mas.rollout.trajectories import write_advantages


def test_a_task_that_no_attempt_trained_on_is_found(tmp_path):
    folder = tmp_path / "checkpoints" / "trajectories"
    for step in range(kill_matrix.STEPS):
        attempt = "1" if step < 5 else "2"
        for number in range(kill_matrix.TASKS):
            if (step, number) != (7, 2):
                write_advantages(folder, step, attempt, {f"{step}-{number}_0_0": 0.5, f"{step}-{number}_1_0": 0.0})
    assert kill_matrix.untrained(tmp_path) == ["7-2"]
