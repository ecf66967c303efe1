"""Lost processes that a run would not notice by itself. `kill_matrix` kills each kind of process at each moment."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from kill_matrix import Run, kill

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("kind", "moment", "code"),
    [("agent-loop", "rollout", 1), ("storage", "update", 1), ("engine", "rollout", 1), ("interrupt", "rollout", -2)],
)
def test_a_run_that_loses_a_process_or_is_interrupted_ends_at_once_and_says_why_and_how_it_resumes(
    warm_python, letters, tmp_path, kind, moment, code
):
    (tmp_path / "letters").symlink_to(letters)
    run = Run(warm_python, tmp_path / "run", "pair")
    try:
        killed = kill(run, kind, moment, 0, 0, random.Random(0))
    finally:
        run.end()
    assert killed.seconds < 30 and killed.exit_code == code, killed.last_lines
    assert killed.named and killed.saved_and_resume_said, killed.last_lines
    assert killed.left == []
