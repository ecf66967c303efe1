"""The checks as a user sees them: verl's own entry point ends before Ray starts."""

import pytest

TEAM = """
from verl_mas.workflow import Workflow


class Mine(Workflow):
    agents = ("solver",)

    def check(self):
        raise ValueError("the server is down")

    async def run(self, task, team): ...
"""


@pytest.mark.e2e
def test_a_team_that_cannot_run_stops_the_entry_point_before_ray_starts_with_all_errors(main_ppo, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(TEAM)
    done = main_ppo(
        tmp_path / "run",
        *("+mas=team", "mas.workflow.name=Mine", f"mas.workflow.path={file}"),
        *("algorithm.adv_estimator=grpo", "+mas.policies.c={}"),
    )
    assert done.exit_code == 1
    assert "agent solver acts on policy main" in done.output
    assert "fix:  set ++mas.agents.solver.policy; known: c" in done.output
    assert "fix:  set algorithm.adv_estimator=agent_grpo" in done.output
    # Otherwise Hydra turns a user's exception into a warning, and the run starts.
    assert f"{file}, line 9: ValueError: the server is down" in done.output
    assert "4 errors" in done.output
    assert "ray init kwargs" not in done.output
