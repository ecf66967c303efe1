"""The demos of teams, with a training that only writes its metrics; and one whole demo with real steps."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from verl_mas.errors import ConfigError
from verl_mas.gym import smollm2
from verl_mas.gym.demos.live import DemoRun
from verl_mas.gym.demos.smollm2 import SmolLM2Demo
from verl_mas.gym.demos.split_clues import SplitCluesDemo
from verl_mas.gym.warmup import WarmUp
from verl_mas.run_folder.checkpoints import complete, folder_of_step, latest

BRIEF = WarmUp(hidden=32, layers=1, steps=2, batch=4, lessons=40)  # too short to learn anything


@pytest.fixture(params=[SmolLM2Demo, SplitCluesDemo], ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def demo(kind, monkeypatch, tmp_path):
    """Runs the demo with a training that only writes its metrics, and returns the output; `trained` has the runs."""
    trained: list[DemoRun] = []
    interval = kind.success.partition("acc/")[0] + "pass@1"

    def watch(run: DemoRun, headline, console):
        trained.append(run)
        values = {kind.success: 0.5, f"{interval}/low": 0.4, f"{interval}/high": 0.6}
        lines = [json.dumps({"step": step, "data": values}) for step in (0, run.steps_in_all)]
        run.metrics.write_text("\n".join(lines) + "\n")
        checkpoint = folder_of_step(run.folder / "checkpoints", run.steps_in_all)
        checkpoint.mkdir(parents=True)
        complete(checkpoint, {})
        shutil.copy(run.metrics, run.folder / "checkpoints")
        return run.steps()

    def call(*argv: str, fresh: bool = False) -> str:
        output = io.StringIO()
        kind().run(list(argv), Console(file=output, width=200), fresh=fresh)
        return output.getvalue()

    monkeypatch.setattr(kind, "folder", tmp_path / "demo")
    monkeypatch.setattr(kind, "draw", lambda self, step: f"sessions of step {step}")
    monkeypatch.setattr(kind, "prepare", lambda self, console: self.folder.mkdir(exist_ok=True))
    monkeypatch.setattr(DemoRun, "watch", watch)
    call.trained = trained
    return call


def test_the_report_has_success_before_and_after_sessions_and_a_figure(demo, kind):
    output = demo()
    assert f"before: 0.500 of {kind.solved} (95 % interval 0.400 to 0.600)\nsessions of step 0" in output
    assert f"sessions of step {demo.trained[0].steps_in_all}" in output
    written = output.replace("\n", "")
    assert (kind.folder / "report.html").exists() and str(kind.folder / "report.html") in written
    assert "findings: none" in output and "sessions none were recorded" in output


def test_a_wrong_argument_is_refused_before_the_files_of_the_last_demo_are_deleted(demo, kind):
    demo()
    with pytest.raises(ConfigError, match="tests_freq"):
        demo("trainer.tests_freq=1", fresh=True)
    assert (kind.folder / "report.html").exists()


def test_an_override_sets_the_length_of_the_progress_bar(demo):
    demo("trainer.total_training_steps=7")
    assert demo.trained[0].steps_in_all == 7 and demo.trained[0].overrides[-1] == "trainer.total_training_steps=7"
    demo(fresh=True)
    assert demo.trained[1].steps_in_all > 7


@pytest.mark.parametrize("steps", ["ten", "0", "-1", ""])
def test_an_invalid_number_of_steps_is_refused_before_anything_is_deleted(demo, kind, steps):
    trained = kind.folder / "model"
    trained.mkdir(parents=True)
    with pytest.raises(ConfigError, match="at least 1"):
        demo(f"trainer.total_training_steps={steps}", fresh=True)
    assert trained.exists()


def test_it_resumes_from_a_checkpoint_and_does_not_train_a_finished_run(demo):
    demo("trainer.total_training_steps=5")
    output = demo("trainer.total_training_steps=9")
    assert "resumes from step 5" in output and [run.resume for run in demo.trained] == [False, True]
    output = demo("trainer.total_training_steps=9")
    assert "already trained to step 9" in output and "sessions of step 9" in output and len(demo.trained) == 2


def test_a_folder_of_another_version_of_the_demo_is_refused(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(kind, "folder", tmp_path)
    monkeypatch.setattr(kind, "warm_up", BRIEF, raising=False)
    monkeypatch.setattr(smollm2, "write_model", lambda folder, show: folder.mkdir())
    silent = Console(file=io.StringIO())
    for _ in range(2):
        kind().prepare(silent)
    monkeypatch.setattr(kind, "version", lambda self: "another")
    with pytest.raises(ConfigError, match=f"demo {kind.name} --fresh"):
        kind().prepare(silent)


@pytest.mark.e2e
@pytest.mark.nightly
def test_the_demo_trains_draws_sessions_and_resumes(warm_python, monkeypatch, tmp_path):
    """The whole demo, with fewer steps and warm processes."""
    demo = SplitCluesDemo
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "warm_up", demo.warm_up.changed({"steps": 30, "batch": 32, "lessons": 2000}))
    small = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.save_freq=1"]
    output = io.StringIO()
    for steps in (1, 2):
        arguments = [*small, "trainer.test_freq=1", f"trainer.total_training_steps={steps}"]
        demo().run(arguments, Console(file=output, width=200))
    text = output.getvalue()
    assert "resumes from step 1" in text and text.count("after: ") == 2 and "sender has " in text
    page = demo.folder / "checkpoints" / "view.html"
    assert page.exists() and f"view     {page.absolute()}" in text
    assert f"sessions {demo.folder.absolute()}/checkpoints/trajectories" in text
    logged = DemoRun([], demo.folder, 2).steps()
    assert [step.number for step in logged] == [0, 1, 2]
    assert all(step.values["actor/grad_norm"] >= 0 and step.values["policy/main/rows/real"] > 0 for step in logged[1:])


@pytest.mark.e2e
@pytest.mark.nightly
def test_smollm2_is_saved_within_two_minutes_and_resumes_after_it_was_killed(tmp_path):
    """With the model from PyPI."""
    command = [sys.executable, "-m", "verl_mas", "demo", "smollm2", "trainer.test_freq=1000"]
    folder = tmp_path / SmolLM2Demo.folder
    demo = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    while not (folder / "log.txt").exists() and demo.poll() is None:
        time.sleep(1)
    started = time.monotonic()
    while not latest(folder / "checkpoints") and demo.poll() is None:
        time.sleep(1)
    assert demo.poll() is None and time.monotonic() - started < 120
    demo.send_signal(signal.SIGINT)
    demo.wait(120)
    saved = latest(folder / "checkpoints").step
    command += [f"trainer.total_training_steps={saved + 1}"]
    resumed = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumes from step {saved}" in resumed.stdout
    assert latest(folder / "checkpoints").step == saved + 1
