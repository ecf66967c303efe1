from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_mas.checks.rules import engines as engine_rules
from verl_mas.checks.run import examine_command
from verl_mas.cli import plan

ROOT = Path(__file__).parents[2]
MAIN = "verl.trainer.main_ppo"
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_proof  # noqa: E402
from proof import cluster, engines, memory_log, plan_beside, recipes, runs, step_memory  # noqa: E402
from proof.memory_log import Sample  # noqa: E402
from proof.page import page  # noqa: E402
from proof.stage import Program, Proof, Skipped, Stage  # noqa: E402


@pytest.fixture
def prove(tmp_path):
    """Run stages; the exit code and the events."""

    def prove(*stages: Stage, cpu: bool = True, model: Path | None = None):
        out = tmp_path / "proof.jsonl"
        with out.open("w") as lines:
            code = gpu_proof.run(list(stages), Proof(tmp_path, lines, cpu=cpu, model=model))
        return code, [json.loads(line) for line in out.read_text().splitlines()]

    return prove


def passes(proof):
    proof.check("one is one", True, 1)


def test_a_stage_that_fails_is_recorded_and_the_next_one_runs(prove):
    def breaks(proof):
        raise KeyError("metric")

    code, events = prove(Stage(0, "breaks", 9, breaks), Stage(1, "passes", 9, passes))
    assert code == 1
    assert events[-1]["results"] == {"0": "failed", "1": "passed"}
    assert any("KeyError: 'metric'" in str(event.get("value")) for event in events)


def test_a_program_that_takes_too_long_is_ended_and_fails_its_stage(prove):
    def sleeps(proof):
        proof.run(Program("sleeps", [sys.executable, "-c", "import time; time.sleep(600)"]))

    start = time.monotonic()
    # Ten times the limit on the CPU.
    code, events = prove(Stage(0, "sleeps", 0.1, sleeps))
    assert time.monotonic() - start < 60
    assert code == 1
    assert [event["value"] for event in events if event["event"] == "check"] == ["out of time"]


def test_a_program_that_fails_leaves_the_end_of_its_log(prove):
    def fails(proof):
        proof.run(Program("fails", [sys.executable, "-c", "raise SystemExit('no GPU here')"]))

    _, events = prove(Stage(0, "fails", 20, fails))
    assert [event["tail"] for event in events if event["event"] == "program"] == [["no GPU here"]]


def test_what_needs_cuda_is_skipped_on_the_cpu_and_a_stage_without_a_check_does_not_pass(prove):
    def lacks(proof):
        raise Skipped("needs the checkpoint of stage 2")

    stages = [Stage(0, "cuda", 9, passes, needs_cuda=True), Stage(1, "lacks", 9, lacks), Stage(2, "empty", 9, str)]
    code, events = prove(*stages)
    assert events[-1]["results"] == {
        "0": "skipped: needs CUDA",
        "1": "skipped: needs the checkpoint of stage 2",
        "2": "failed",
    }
    assert code == 1


def test_an_allocator_that_is_not_installed_is_named(prove, monkeypatch):
    monkeypatch.setattr(engines, "_step", lambda proof, kind, serving: passes(proof))
    _, events = prove(replace(gpu_proof.STAGES[6], needs_cuda=False))
    skipped = [event["skipped"] for event in events if event.get("skipped")]
    assert "torch_memory_saver is not installed" in skipped


def test_the_limits_of_all_stages_are_fifteen_minutes_and_ten_more_with_a_model():
    assert [stage.number for stage in gpu_proof.STAGES] == list(range(12))
    seconds = [stage.seconds for stage in gpu_proof.STAGES]
    assert seconds.pop(8) == gpu_proof.OF_MODEL == 600 and sum(seconds) <= gpu_proof.LIMIT == 900


@pytest.mark.parametrize(("ends", "status"), [([0.1, 0.3, 0.9], "passed"), ([0.1, 0.3], "failed"), ([], "failed")])
def test_a_pretrained_model_has_to_learn_and_its_curve_is_written(prove, monkeypatch, tmp_path, ends, status):
    key = "val-core/secret_words{}/acc/mean@1"
    steps = {number: {key.format(""): end, key.format("_shuffled"): 0.0} for number, end in enumerate(ends)}
    monkeypatch.setattr(runs, "_steps_of", lambda folder: steps)
    monkeypatch.setattr(Proof, "run", lambda self, *programs: passes(self))
    _, events = prove(gpu_proof.STAGES[8], model=tmp_path)
    assert events[-1]["results"] == {"8": status}
    curve = next(event["right"] for event in events if event["event"] == "curve")
    assert curve == {str(number): end for number, end in enumerate(ends)}


def test_every_recipe_for_gpus_is_accepted_as_for_machines_that_have_them_the_engine_and_the_data(capsys):
    assert recipes.main() == 0, capsys.readouterr().out
    assert "math/shared: accepted" in capsys.readouterr().out
    assert recipes.refusals("no_such/recipe")


def of(process: int, title: str, *held: tuple[float, int]) -> list[Sample]:
    return [Sample(time, process, title, size) for time, size in held]


def test_what_a_policy_holds_while_another_one_updates_is_told_from_what_it_holds_itself():
    idle, update = "ray::Workers", "ray::Workers.actor_rollout_update_actor"
    a = [*of(1, idle, (0, 5), (4, 7), (6, 40)), *of(1, update, (1, 90), (3, 80))]
    # At 0.9 and 3.1 b holds its own work's memory: one of its updates ends, or begins, beside the one of a.
    b = [*of(2, idle, (0.9, 70), (2, 6), (3.1, 60)), *of(2, update, (3.5, 80), (5, 85))]
    other = [Sample(4, 3, "ray::TransformersServer", 30)]
    samples = sorted([*a, *b, *other], key=lambda sample: sample.time)
    assert memory_log.held_while_waiting(samples) == {1: (90, 7), 2: (85, 6)}
    assert memory_log.engines(samples) == {3: 30}


def test_the_memory_of_the_card_is_told_by_phase():
    """Beside the begin and the end of an update the card may hold what no phase of the plan has."""

    def card(title: str, *held: tuple[float, int]) -> list[Sample]:
        return [Sample(time, 1, title, 0, size) for time, size in held]

    starts = card("ray::Workers", (0, 10), (1, 44))
    sync = card("ray::Workers.actor_rollout_update_weights", (2, 18))
    idle = card("ray::Workers", (2.05, 99), (3, 40), (4.95, 98), (6, 39))
    trains = [*card("ray::Workers.compute_log_prob", (5, 12)), *card("ray::Workers.update_actor", (5.5, 27), (5.6, 28))]
    samples = sorted([*starts, *sync, *idle, *trains], key=lambda sample: sample.time)
    expected = {"engine start": 44, "weight sync": 18, "rollout": 40, "log-probs": 12, "update": 28}
    assert memory_log.most_by_phase(samples) == expected


def test_a_weight_sync_ends_where_the_kv_cache_wakes(tmp_path):
    """In a process of its own, as the log writes until the process ends; verl's base class is the real one."""
    program = f"""
import asyncio, os, sys, time
sys.path.insert(0, {str(ROOT / "scripts")!r})
from ray._raylet import setproctitle
from verl.workers.rollout.base import BaseRollout
class Adapter(BaseRollout):
    async def resume(self, tags): time.sleep(0.3)
    async def release(self): ...
    async def update_weights(self, weights, **kwargs): ...
adapter = Adapter.__new__(Adapter)
from proof import memory_log
time.sleep(0.3)
setproctitle("ray::Workers.update_weights")
asyncio.run(adapter.resume(tags=["weights"]))
asyncio.run(adapter.resume(tags=["kv_cache"]))
setproctitle("ray::Workers")
time.sleep(0.3)
"""
    env = os.environ | {memory_log.FOLDER: str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    titles = [key for key, _ in groupby(sample.title for sample in memory_log.read(tmp_path))]
    assert titles[-3:] == ["ray::Workers.update_weights", memory_log.KV_CACHE, "ray::Workers"]


def test_factors_of_what_was_measured_beside_the_plan_are_a_file_that_plan_reads(tmp_path, capsys):
    arguments = ["+recipe=math/shared", "--gpus=4x80"]
    plan.main([*arguments, "--json"])
    planned = plan_beside.estimates(f"a warning\n{capsys.readouterr().out}")
    lines = io.StringIO()
    proof = Proof(tmp_path, lines, cpu=False)
    taken = {phase: int(1.25 * gib * plan_beside.GIB) for phase, gib in planned.items()}
    plan_beside.write(proof, "H100", arguments, taken, planned)
    assert not proof.failed and set(planned) == {"engine start", "weight sync", "rollout", "log-probs", "update"}
    plan.main([*arguments, "--json", f"--calibration={tmp_path}/calibration.json"])
    calibrated = plan_beside.estimates(capsys.readouterr().out)
    assert calibrated == {phase: pytest.approx(1.25 * gib, rel=2e-3) for phase, gib in planned.items()}
    shown = page([json.loads(line) for line in lines.getvalue().splitlines()])
    assert f"| update | {1.25 * planned['update']:.2f} | {planned['update']:.2f} | 1.25 |" in shown


def test_a_moment_that_was_not_measured_fails(tmp_path):
    proof = Proof(tmp_path, io.StringIO(), cpu=False)
    plan_beside.write(proof, "H100", [], {"update": plan_beside.GIB}, {"update": 1.0, "rollout": 2.0})
    assert proof.failed == 1


def test_the_page_has_every_stage_and_why_a_check_failed_or_was_not_made(prove):
    def work(proof):
        proof.check("one is two", False, "Traceback\nValueError: no")
        proof.unless("needs CUDA", "memory")

    _, events = prove(Stage(0, "numbers", 9, work), Stage(1, "letters", 9, passes))
    shown = page(events)
    assert "| 0 numbers | failed | 0 |" in shown and "| 1 letters | passed | 1 |" in shown
    assert "- stage 0: one is two: `ValueError: no`" in shown and "- stage 0: memory: needs CUDA" in shown
    assert "Failed" not in page([event for event in events if event["stage"] == 1])


class Ledger(step_memory.Step):
    """What the orders of a step hold, without processes."""

    def __init__(self):
        self.held, self.events = {}, []

    def tell(self, name, *orders):
        changes = {"wake_weights": step_memory.WEIGHTS, "wake_cache": step_memory.CACHE}
        takes = {"bucket": step_memory.BUCKET, "update": step_memory.TRAINER, "sleep": 0, "pause": 0, "release": 0}
        takes["start"] = 0 if "trainer" in name else step_memory.WEIGHTS + step_memory.CACHE
        for order in orders:
            self.held[name] = self.held[name] + changes[order] if order in changes else takes[order]

    def measure(self, event, most):
        self.events.append((event, sum(self.held.values()), most))


@pytest.mark.parametrize("serving", engines.SERVING)
def test_what_stage_6_expects_is_what_its_orders_hold_and_fits_the_card(serving):
    ledger = Ledger()
    step_memory.run(ledger, serving)
    assert [event for event, held, most in ledger.events if held != most] == []
    processes = 4 * step_memory.PROCESS
    assert max(most for _, _, most in ledger.events) + processes <= engines.MOST_SHARE * step_memory.CARD


class Commands(Proof):
    """Collects the training commands of a stage and runs nothing."""

    def __init__(self, folder: Path, *, cpu: bool):
        super().__init__(folder, io.StringIO(), cpu=cpu)
        self.trained: dict[str, list[str]] = {}

    def run(self, *programs: Program):
        self.trained |= {program.name: program.command[3:] for program in programs if MAIN in program.command}
        return []

    def start(self, program: Program, out):
        self.run(program)
        return subprocess.Popen(["true"], start_new_session=True)


@pytest.mark.parametrize("stage", [1, 2, 3, 4, 7, 9, 10, 11])
def test_the_commands_for_a_gpu_pass_the_checks_for_one_gpu(stage, letters, tmp_path, monkeypatch):
    """As for a run on another machine, which has one."""
    monkeypatch.setattr(cluster, "ray_head", lambda proof: nullcontext({}))
    gpus = 2 if stage == 10 else 1
    monkeypatch.setattr(runs, "torch", SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: gpus)))
    for module in (runs, engine_rules):
        monkeypatch.setattr(module, "find_spec", lambda package: True)
    (tmp_path / "task").symlink_to(letters)
    for model in ("small", "large"):
        (letters / model).exists() or (letters / model).symlink_to(letters / "model")
    (tmp_path / "two/checkpoints/global_step_2").mkdir(parents=True)
    proof = Commands(tmp_path, cpu=False)
    gpu_proof.STAGES[stage].work(proof)
    assert proof.trained
    for name, arguments in proof.trained.items():
        # Stage 4 resumes from a checkpoint, which is not made here.
        new = [argument for argument in arguments if "resume" not in argument]
        machine = [f"++ray_kwargs.ray_init.num_gpus={gpus}", "++ray_kwargs.ray_init.num_cpus=32"]
        report = examine_command([*new, *machine, f"trainer.default_local_dir={tmp_path}/{name}"])
        assert report.accepted, f"{name}\n{report.problems}"


@pytest.mark.e2e
def test_the_cpu_form_trains_and_sends_weights(tmp_path):
    out = tmp_path / "proof.jsonl"
    command = [sys.executable, str(ROOT / "scripts/gpu_proof.py"), "--cpu", "--stages=1,5,6,9", f"--out={out}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    events = [json.loads(line) for line in out.read_text().splitlines()]
    wrong = [event for event in events if event["event"] == "check" and event["passed"] is False]
    assert done.returncode == 0 and not wrong, (wrong, done.stderr)
    assert events[-1]["results"] == {"1": "passed", "5": "passed", "6": "skipped: needs CUDA", "9": "passed"}
    assert "| 9 adapters of one base, asynchronous | passed |" in out.with_suffix(".md").read_text()
