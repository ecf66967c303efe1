from __future__ import annotations

import kill_matrix

from verl_mas.run_folder.session_files import write_advantages


def test_a_task_that_no_attempt_trained_on_is_found(tmp_path):
    folder = tmp_path / "checkpoints" / "trajectories"
    for step in range(kill_matrix.STEPS):
        attempt = "1" if step < 5 else "2"
        for number in range(kill_matrix.TASKS):
            if (step, number) != (7, 2):
                write_advantages(folder, step, attempt, {f"{step}-{number}_0_0": 0.5, f"{step}-{number}_1_0": 0.0})
    assert kill_matrix.untrained(tmp_path) == ["7-2"]


def test_a_task_that_was_trained_on_before_the_checkpoint_and_after_it_is_found(tmp_path):
    folder = tmp_path / "checkpoints" / "trajectories"

    def train(attempt, steps, *more):
        for step in steps:
            write_advantages(folder, step - 1, attempt, {f"{step - 1}-0_{session}_0": 0.5 for session in range(2)})
        for uid in more:
            write_advantages(folder, int(uid[0]), attempt, {f"{uid}_0_0": 0.5})

    train("1", (1, 2, 3))
    train("2", (3, 4))  # attempt 2 resumes from the checkpoint of step 2
    assert kill_matrix.trained_twice(tmp_path, [1, 3]) == []
    train("3", (5, 6), "1-0", "5-0")
    assert kill_matrix.trained_twice(tmp_path, [1, 3, 5]) == ["1-0", "5-0"]
