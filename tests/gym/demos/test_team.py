"""The demos of teams, with a training that only writes its metrics; and one whole demo with real steps."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from verl_mas.config.hydra.recipe.smollm2.demo import SmolLM2Demo
from verl_mas.config.hydra.recipe.split_clues.demo import SplitCluesDemo
from verl_mas.data.dataset import MANIFEST
from verl_mas.errors import ConfigError
from verl_mas.gym.demos import team
from verl_mas.gym.demos.live import DemoRun
from verl_mas.run_folder.checkpoints import complete, folder_of_step, latest


@pytest.fixture(params=[SmolLM2Demo, SplitCluesDemo])
def kind(request):
    return request.param


@pytest.fixture
def demo(kind, monkeypatch, tmp_path):
    """Return a function that runs the demo with a training that only writes its metrics, and that returns the output.
    `trained` lists the runs, and `made` lists the arguments of `verl-mas data`."""
    trained: list[DemoRun] = []
    made: list[list[str]] = []
    interval = kind.success.partition("acc/")[0] + "pass@1"

    def make(arguments: list[str]) -> None:
        made.append(arguments)
        kind.folder.mkdir(exist_ok=True)
        (kind.folder / MANIFEST).touch()

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

    def sessions(folder, *, validate, step):
        """Return sessions with wrong answers. Half of them are of tasks that the demo does not draw."""
        acts, outcome = [{"text": "a"}, {"text": "b"}], {"reward": 0.0}
        task = {"ground_truth": f"at_{step}", "messages": [{"content": "abc|def?"}]}
        return [
            {"task": {**task, "index": index, "data_source": source}, "acts": acts, "outcome": outcome}
            for index, source in enumerate([kind.source, f"{kind.source}_shuffled"] * 8)
        ]

    def call(*argv: str, fresh: bool = False) -> str:
        output = io.StringIO()
        kind().run(list(argv), Console(file=output, width=200), fresh=fresh)
        return output.getvalue()

    monkeypatch.setattr(kind, "folder", tmp_path / "demo")
    monkeypatch.setattr(team, "read_sessions", sessions)
    monkeypatch.setattr(team.data, "main", make)
    monkeypatch.setattr(DemoRun, "watch", watch)
    call.trained, call.made = trained, made
    return call


def test_the_report_has_success_before_and_after_sessions_and_a_figure(demo, kind):
    output = demo()
    assert f"before: 0.500 of {kind.solved} (95 % interval 0.400 to 0.600)\n" in output
    assert [output.count(f"at_{step}") for step in (0, demo.trained[0].steps_in_all)] == [5, 5]
    written = output.replace("\n", "")
    assert (kind.folder / "report.html").exists() and str(kind.folder / "report.html") in written
    assert "findings: none" in output and demo.made == [[*kind.data, "--out", str(kind.folder), "--force"]]


@pytest.mark.parametrize(
    ("argument", "says"),
    [("trainer.tests_freq=1", "tests_freq"), *((f"{team.STEPS}={steps}", "at least 1") for steps in ("ten", "0", ""))],
)
def test_a_wrong_argument_is_refused_before_the_files_of_the_last_demo_are_deleted(demo, kind, argument, says):
    kind.folder.mkdir()
    with pytest.raises(ConfigError, match=says):
        demo(argument, fresh=True)
    assert kind.folder.exists()


def test_it_resumes_from_a_checkpoint_and_does_not_train_a_finished_run(demo):
    demo("trainer.total_training_steps=5")
    output = demo("trainer.total_training_steps=9")
    assert "resumes from step 5" in output and [run.resume for run in demo.trained] == [False, True]
    assert [run.steps_in_all for run in demo.trained] == [5, 9]
    output = demo("trainer.total_training_steps=9")
    assert "already trained to step 9" in output and "at_9" in output and len(demo.trained) == 2
    assert len(demo.made) == 1
    demo(fresh=True)
    assert len(demo.made) == 2


@pytest.mark.e2e
@pytest.mark.nightly
def test_the_demo_trains_draws_sessions_and_resumes(warm_python, monkeypatch, tmp_path):
    """The whole demo, with fewer steps and warm processes."""
    demo = SplitCluesDemo
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "data", (*demo.data, "--warm-up", "steps=30", "batch=32", "lessons=2000"))
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
    """Run the demo with the model from PyPI."""
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
