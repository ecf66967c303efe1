"""The check as a user meets it: verl's own entry point, stopped before Ray starts."""

from __future__ import annotations

import pytest


@pytest.mark.e2e
def test_a_team_that_cannot_run_stops_the_entry_point_before_ray_starts(main_ppo, tmp_path):
    done = main_ppo(
        tmp_path / "run", "+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", "+mas.policies.c={}"
    )
    assert done.exit_code == 1
    assert "agent solver acts on policy main" in done.output
    assert "fix:  set ++mas.agents.solver.policy; known: c" in done.output
    assert "ray init kwargs" not in done.output
