from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from verl_mas.demos import plan_path
from verl_mas.demos.live import Run
from verl_mas.demos.plan_path import HIGH, LOW, SUCCESS
from verl_mas.errors import ConfigError
from verl_mas.run_folder.checkpoints import complete, folder_of_step
from verl_mas.warmup.train import WarmUp


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """Runs the demo with a training that only writes its metrics, and returns the output; `trained` has the runs."""
    trained: list[Run] = []

    def watch(run: Run, headline, console):
        trained.append(run)
        run.metrics.write_text("".join(json.dumps(step) + "\n" for step in logged(0, run.steps_in_all)))
        checkpoint = folder_of_step(run.folder / "checkpoints", run.steps_in_all)
        checkpoint.mkdir(parents=True)
        complete(checkpoint, {})
        return run.steps()

    def call(*argv: str, fresh: bool = False) -> str:
        output = io.StringIO()
        plan_path.run(list(argv), Console(file=output, width=200), fresh=fresh)
        return output.getvalue()

    monkeypatch.setattr(plan_path, "FOLDER", tmp_path)
    monkeypatch.setattr(plan_path, "_session", lambda step, settings: f"board of step {step}")
    monkeypatch.setattr(plan_path, "prepare", lambda settings, console: tmp_path.mkdir(exist_ok=True))
    monkeypatch.setattr(Run, "watch", watch)
    call.trained = trained
    return call


def logged(*steps: int):
    return [{"step": step, "data": {SUCCESS: 0.5, LOW: 0.4, HIGH: 0.6}} for step in steps]


def test_the_report_has_success_before_and_after_sessions_and_a_figure(demo, tmp_path):
    output = demo()
    assert "before: 0.500 of the held-out grids solved (95 % interval 0.400 to 0.600)\nboard of step 0" in output
    assert f"board of step {demo.trained[0].steps_in_all}" in output
    assert (tmp_path / "curves.png").exists() and str(tmp_path / "curves.png") in output.replace("\n", "")


def test_an_override_sets_the_length_of_the_progress_bar(demo):
    demo("trainer.total_training_steps=7")
    assert demo.trained[0].steps_in_all == 7 and demo.trained[0].overrides[-1] == "trainer.total_training_steps=7"
    demo(fresh=True)
    assert demo.trained[1].steps_in_all > 7


@pytest.mark.parametrize("steps", ["ten", "0", "-1", ""])
def test_an_invalid_number_of_steps_is_refused_before_anything_is_deleted(demo, tmp_path, steps):
    trained = tmp_path / "model"
    trained.mkdir()
    with pytest.raises(ConfigError, match="at least 1"):
        demo(f"trainer.total_training_steps={steps}", fresh=True)
    assert trained.exists()


def test_it_resumes_from_a_checkpoint_and_does_not_train_a_finished_run(demo):
    demo("trainer.total_training_steps=5")
    output = demo("trainer.total_training_steps=9")
    assert "resumes from step 5" in output and [run.resume for run in demo.trained] == [False, True]
    output = demo("trainer.total_training_steps=9")
    assert "already trained to step 9" in output and "board of step 9" in output and len(demo.trained) == 2


def test_a_folder_of_another_version_of_the_demo_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(plan_path, "FOLDER", tmp_path)
    monkeypatch.setattr(plan_path, "WARM_UP", WarmUp(hidden=32, layers=1, steps=2, batch=4, lessons=40))
    settings = {"mas": {"workflow": {"args": {"text": "compact", "moves": 1, "max_turns": 8}}}}
    for _ in range(2):
        plan_path.prepare(settings, Console(file=io.StringIO()))
    monkeypatch.setattr(plan_path, "NOISE", 0.1)
    with pytest.raises(ConfigError, match="--fresh"):
        plan_path.prepare(settings, Console(file=io.StringIO()))


@pytest.mark.e2e
def test_the_demo_trains_draws_a_session_and_resumes(warm_python, monkeypatch, tmp_path):
    """The whole demo, with fewer steps and warm processes."""
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_path, "WARM_UP", WarmUp(steps=30, batch=32, lessons=2000))
    brief = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "mas.branch.k=2"]
    # The candidates of an untrained team are often equal.
    brief += ["data.val_max_samples=16", "trainer.save_freq=1", "mas.skip_zero_advantage=false"]
    output = io.StringIO()
    for steps in (1, 2):
        plan_path.run([*brief, f"trainer.total_training_steps={steps}"], Console(file=output, width=200))
    text = output.getvalue()
    assert "resumes from step 1" in text and text.count("after: ") == 2
    assert "start   p: " in text and "        e: " in text
    logged = plan_path.Run([], plan_path.FOLDER, 2).steps()
    assert [step.number for step in logged] == [0, 1, 2]
    assert all(step.values["actor/grad_norm"] >= 0 and step.values["mas/main/rows/real"] > 0 for step in logged[1:])
