"""An estimator of the user's own is tried on rows before a run."""

import pytest

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.estimators import check_estimator
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.workflow.members import members_of

OWN = "own = within(batch, batch.partition('task', 'agent'), options)"
SOUND = f"{OWN}\n    return own"


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What is found of an estimator with this body."""

    def found(body):
        monkeypatch.setattr(ESTIMATORS, "_entries", {name: ESTIMATORS[name] for name in ESTIMATORS})
        (tmp_path / "est.py").write_text(
            "from verl_mas import AdvantageOutput, estimator, within\n"
            f"@estimator()\ndef agent_mine(batch, options):\n    {body}\n"
        )
        exec(compile((tmp_path / "est.py").read_text(), str(tmp_path / "est.py"), "exec"), {"__name__": "mine"})
        members = members_of(("solver", "verifier"), {}, {"main": PolicySpec()})
        return [str(one) for one in check_estimator(MasConfig(), ESTIMATORS["agent_mine"], members, 4, 2)]

    return found


def test_one_that_compares_rows_passes(found):
    assert found(SOUND) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return batch.scores", "'Tensor' object has no attribute 'groups'"),
        (
            f"{OWN}\n    return AdvantageOutput(own.advantages / batch.scores, own.groups, own.stats)",
            "one finite number",
        ),
        ("return within(batch, batch.partition('task', 'agnet'), options)", "the rows have no agnet"),
        (
            "return within(batch, batch.partition('task', 'session', 'agent', 'branch'), options)",
            "all advantages are 0",
        ),
        (f"batch.scores.mul_(2)\n    {SOUND}", "it changes scores"),
    ],
)
def test_one_that_a_step_could_not_use_is_named(found, body, says):
    (only,) = found(body)
    assert says in only and "algorithm.adv_estimator=agent_mine" in only


def test_ours_are_not_tried():
    assert list(check_estimator(MasConfig(), ESTIMATORS["agent_grpo"], {}, 4, 1)) == []
