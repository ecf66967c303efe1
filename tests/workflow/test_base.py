"""Workflows are found by name or file, and made with their arguments."""

import pytest

from verl_mas.config.schema import WorkflowSpec
from verl_mas.errors import ConfigError
from verl_mas.workflow.base import resolve

FILE = """
from verl_mas.workflow import Outcome, Workflow, register_workflow

@register_workflow("mine")
class Mine(Workflow):
    agents = ("solver",)
    rounds: int = 1

    async def run(self, task, team):
        return Outcome()
"""


def test_a_file_is_enough_and_may_be_loaded_twice(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    for name in ("mine", "Mine"):
        spec = WorkflowSpec(name, str(tmp_path / "mine.py"), {"rounds": 3})
        assert resolve(spec).rounds == 3
        assert type(resolve(spec)) is type(resolve(spec))
    # A shipped workflow is found although the settings name a user's file.
    assert resolve(WorkflowSpec("single", str(tmp_path / "mine.py"))).agents == ("solver",)
    with pytest.raises(ConfigError, match=r"did you mean 'Mine'.*ensemble.*; classes of that file: Mine"):
        resolve(WorkflowSpec("Mien", str(tmp_path / "mine.py")))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (WorkflowSpec("singel"), "did you mean 'single'"),
        (WorkflowSpec("solver_verifier", args={"max_round": 2}), "did you mean 'max_rounds'"),
        (WorkflowSpec("x", path="/no/such/file.py"), "must be a Python file"),
        (WorkflowSpec("x", path="json"), "a class of the file or module"),
        # A rule between fields.
        (WorkflowSpec("solver_verifier", args={"verdict_reward": 0.5}), r"verdict_reward=0\.5 with score=verl"),
    ],
)
def test_a_workflow_that_cannot_be_found_or_made_is_refused_with_a_fix(spec, words):
    with pytest.raises(ConfigError, match=words):
        resolve(spec)
