"""Workflows are found by name or file, and made with their arguments."""

from __future__ import annotations

import subprocess
import sys

import pytest

from verl_mas.config.schema import WorkflowSpec
from verl_mas.errors import ConfigError, ConfigErrors
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


def test_a_shipped_workflow_is_found_beside_a_users_file(tmp_path):
    (tmp_path / "my_estimator.py").write_text("")
    program = (
        "from verl_mas.workflow.base import resolve; from verl_mas.config.schema import WorkflowSpec\n"
        f"print(resolve(WorkflowSpec('ensemble', {str(tmp_path / 'my_estimator.py')!r})).agents)"
    )
    # In a process of its own, where nothing else has imported the workflow.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "reasoner_2" in done.stdout


THEIRS = """
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from verl_mas.workflow import Outcome, Workflow

if TYPE_CHECKING:
    from somewhere import Anything

class Judge:
    pass

class Theirs(Workflow):
    agents = ("solver",)
    model: str
    rounds: int = 1
    tone: Literal["kind", "strict"] = "kind"
    judge: Judge | None = None
    key: Callable[[str], str] = str.lower
    thing: "Anything" = None

    async def run(self, task, team):
        return Outcome()
"""


def test_the_arguments_of_a_third_partys_workflow_are_checked_by_its_annotations(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(THEIRS)
    with pytest.raises(ConfigErrors) as refused:
        resolve(WorkflowSpec("Theirs", str(file), {"rounds": "abc", "tone": "strickt"}))
    assert [error.value for error in refused.value.errors] == [
        "mas.workflow.args.rounds='abc'",
        "mas.workflow.args.tone='strickt'",
        "mas.workflow.args has no model",
    ]
    assert "did you mean 'strict'" in refused.value.fix
    # Those of unknown types are not checked.
    team = resolve(WorkflowSpec("Theirs", str(file), {"model": "m", "judge": "strict", "thing": 1, "key": "lower"}))
    assert (team.judge, team.thing, team.key) == ("strict", 1, "lower")
