import pytest

from verl_mas.config.schema import AgentSpec
from verl_mas.errors import DataError
from verl_mas.results.serve.export import CARD, MARK, Card
from verl_mas.run_folder.metrics.file import MetricsFile, Step
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow

ENDS = {"": 0.0, "/low": -0.1, "/high": 0.1}
TEAM = TeamFile(FORMAT, TeamWorkflow("single"), {"solver": AgentSpec()}, {"main": TeamPolicy("hub/m", "main")}, step=2)


def test_a_card_has_the_validations_up_to_its_step(tmp_path):
    log = MetricsFile(tmp_path)
    for step, value in ((0, 0.25), (2, 0.5), (4, 0.75)):
        log.log({"val-core/sums/acc/mean@4": value, "val-core/sums/acc/std@4": 0.1}, step)
    (tmp_path / "out").mkdir()
    Card.of("team", TEAM, tmp_path).write(tmp_path / "out")
    text = (tmp_path / "out" / CARD).read_text()
    assert "| `sums/acc/mean@4` | 0.250 (step 0) | 0.500 (step 2) |  | ▁█ |" in text and "0.75" not in text
    assert MARK in text


def test_a_card_has_the_first_and_last_success_with_its_interval_once(tmp_path):
    steps = []
    for step, right in enumerate((0.25, float("nan"), 0.75)):
        success = {f"val-core/sums/pass@1{end}": right + more for end, more in ENDS.items()}
        shuffled = {"val-core/sums_shuffled/pass@1": 0.25}
        steps.append(Step(step, {"val-core/sums/acc/mean@8": right, **success, **shuffled}))
    Card("team", TEAM, steps=steps).write(tmp_path)
    text = (tmp_path / CARD).read_text()
    assert "| `sums/pass@1` | 0.250 (step 0) | 0.750 (step 2) | 0.650 to 0.850 |" in text
    assert "| `sums_shuffled/pass@1`, control of sums | 0.250" in text
    assert "mean@8" not in text, "of sessions that are right or wrong it is pass@1"


def test_without_the_folder_of_its_run_a_card_has_the_team_alone(tmp_path):
    Card.of("team", TEAM, tmp_path / "gone").write(tmp_path)
    assert "workflow `single`, after 2 steps" in (tmp_path / CARD).read_text()
    # The damaged folder of a run does not count as missing.
    (tmp_path / "run.yaml").write_text("[")
    with pytest.raises(DataError, match=r"run\.yaml cannot be read"):
        Card.of("team", TEAM, tmp_path)
