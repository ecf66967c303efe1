from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from verl_mas.run_folder.metrics.file import Step

SUCCESS = "val-core/plan_path/acc/mean@1"
PLAN_PATH_STEPS = 20
SHUFFLED = "val-core/plan_path_shuffled/acc/mean@1"


@pytest.fixture
def runs(evidence, monkeypatch, tmp_path):
    module = evidence("runs")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    return module


class Commands:
    """Records commands instead of running them. For a training run, it writes the metrics that verl would write."""

    def __init__(self, steps: int):
        self.seen: list[list[str]] = []
        self.steps = steps

    def __call__(self, command, *, env, **_):
        self.seen.append(command)
        if "verl.trainer.main_ppo" in command:
            lines = (
                {"step": n, "data": {SUCCESS: 0.5 + n / 100, "actor/grad_norm": 1.0}} for n in range(self.steps + 1)
            )
            Path(env["VERL_FILE_LOGGER_PATH"]).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def commands(runs, monkeypatch):
    recorded = Commands(PLAN_PATH_STEPS)
    monkeypatch.setattr(runs.subprocess, "run", recorded)
    return recorded


def test_a_training_warms_up_once_a_seed_and_keeps_its_numbers(evidence, runs, commands):
    matrix = evidence("matrix")
    one, two = (matrix.Piece(matrix.ARMS[name], 1) for name in ("at_grpo_shared", "agent_grpo"))
    runner = runs.Runner(through=["nice"])
    runner.run(one)
    runner.run(two)
    assert [command[0] for command in commands.seen] == ["nice"] * 3
    assert sum("puzzle" in command for command in commands.seen) == 1
    found = json.loads(runs.result_of(one).read_text())
    assert (found["arm"], found["seed"], found["success"]) == (
        "at_grpo_shared",
        1,
        pytest.approx({str(n): 0.5 + n / 100 for n in range(PLAN_PATH_STEPS + 1)}),
    )
    assert found["series"] == {"actor/grad_norm": [1.0] * PLAN_PATH_STEPS}
    assert runs.finished(one) and not runs.usable(one)


def test_a_larger_board_has_a_warm_up_of_its_own(evidence, runs, commands):
    matrix = evidence("matrix")
    for name in ("at_grpo_shared", "at_grpo_size6"):
        runs.Runner().run(matrix.Piece(matrix.ARMS[name], 0))
    made = [command for command in commands.seen if "puzzle" in command]
    assert [command[command.index("--size") + 1] for command in made] == ["size=4", "size=6"]
    assert any(word.endswith("planner_executor-6-0/model") for word in commands.seen[-1])


def test_an_evaluation_gives_each_role_the_weights_that_its_arm_says(evidence, runs, commands):
    matrix = evidence("matrix")
    piece = matrix.Piece(matrix.ARMS["roles_swapped"], 0)
    runs.Runner().run(piece)
    merged = [command[-1] for command in commands.seen if "merge" in command]
    planner, executor = merged
    assert planner.endswith("at_grpo_per_role-0/executor-hf") and executor.endswith("at_grpo_per_role-0/planner-hf")
    validation = commands.seen[-1]
    policies = next(word for word in validation if word.startswith("mas.policies="))
    assert f"planner: {{overrides: {{model: {{path: {planner}}}}}}}" in policies
    assert f"executor: {{overrides: {{model: {{path: {executor}}}}}}}" in policies
    assert "trainer.val_only=true" in validation


def test_a_result_of_other_settings_stops_the_runner(evidence, runs, commands):
    matrix = evidence("matrix")
    piece = matrix.Piece(matrix.ARMS["at_grpo_shared"], 0)
    runs.Runner().run(piece)
    found = json.loads(runs.result_of(piece).read_text())
    runs.result_of(piece).write_text(json.dumps(found | {"settings": found["settings"][1:]}))
    with pytest.raises(ValueError, match="delete it"):
        runs.finished(piece)


def test_a_training_that_is_repeated_leaves_neither_weights_of_the_first_nor_evaluations_of_them(
    evidence, runs, commands
):
    matrix = evidence("matrix")
    piece, other = (matrix.Piece(matrix.ARMS["at_grpo_per_role"], seed) for seed in (0, 1))
    old = runs.RUNS / piece.key / "planner-hf" / "config.json"
    kept, swapped, elsewhere = (
        runs.result_of(matrix.Piece(matrix.ARMS[name], seed))
        for name, seed in (("roles_kept", 0), ("roles_swapped", 0), ("roles_kept", other.seed))
    )
    for file in (old, kept, swapped, elsewhere):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    runs.Runner().run(piece)
    assert not old.exists() and not kept.exists() and not swapped.exists() and elsewhere.exists()


def test_a_model_of_an_earlier_warm_up_is_made_again(evidence, runs, commands):
    matrix = evidence("matrix")
    piece = matrix.Piece(matrix.ARMS["at_grpo_shared"], 0)
    runs.Runner().run(piece)
    runs.result_of(piece).unlink()
    start = replace(piece.arm.start, command=(*piece.arm.start.command, "batch=64"))
    runs.Runner().run(replace(piece, arm=replace(piece.arm, start=start)))
    assert sum("puzzle" in command for command in commands.seen) == 2


@pytest.fixture
def trial(evidence):
    return replace(evidence("tasks.plan_path").TRIAL, steps=2, controls={"shuffled": SHUFFLED})


def test_numbers_are_a_value_a_step_without_the_validation_before_training(runs, trial):
    rows = "policy/planner/rows/real"
    steps = [
        Step(0, {SUCCESS: 0.5, SHUFFLED: 0.25}),
        Step(1, {rows: 8.0}),
        Step(2, {rows: 9.0, "agent/planner/group/inflation": 1.5}),
    ]
    kept = {rows: [8.0, 9.0], "agent/planner/group/inflation": [None, 1.5]}
    controls = {"shuffled": {"0": 0.25}}
    assert runs.numbers(trial, steps) == {"success": {"0": 0.5}, "controls": controls, "series": kept}


def test_a_run_that_ended_early_has_no_numbers(runs, trial):
    with pytest.raises(ValueError, match="logged"):
        runs.numbers(trial, [Step(0, {SUCCESS: 0.5}), Step(1, {})])
