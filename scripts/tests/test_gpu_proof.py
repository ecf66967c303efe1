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
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from verl_mas.checks.report import CheckReport
from verl_mas.checks.rules import engines as engine_rules
from verl_mas.checks.run import examine_command
from verl_mas.cli import plan
from verl_mas.testing import letters
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.trainer.timeline import UPDATE, Timeline

ROOT = Path(__file__).parents[2]
MAIN = "verl.trainer.main_ppo"
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_proof  # noqa: E402
from proof import (  # noqa: E402
    cluster,
    engines,
    long,
    memory_log,
    models,
    plan_beside,
    recipes,
    short,
    step_memory,
    training,
    turns,
)
from proof.memory_log import Sample  # noqa: E402
from proof.page import page  # noqa: E402
from proof.stage import Ended, Program, Proof, Skipped, Stage  # noqa: E402

LONG = gpu_proof.ORDERS["long"]


@pytest.fixture
def prove(tmp_path):
    """Return a function that runs stages and returns the exit code and the events."""

    def prove(*stages: Stage, cpu: bool = True, model: Path | None = None):
        out = tmp_path / "proof.jsonl"
        with out.open("w") as lines:
            code = gpu_proof.run(list(stages), Proof(tmp_path, lines, cpu=cpu, model=model), limit=1200)
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
    # On the CPU a stage has ten times its limit: here one second.
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
    _, events = prove(replace(LONG[6], needs_cuda=False))
    skipped = [event["skipped"] for event in events if event.get("skipped")]
    assert "torch_memory_saver is not installed" in skipped


def test_the_limits_of_the_short_order_are_fourteen_minutes():
    assert sum(stage.seconds for stage in gpu_proof.ORDERS["short"]) <= gpu_proof.LIMITS["short"] == 14 * 60
    assert sum(stage.seconds for stage in LONG if stage.number != 8) <= gpu_proof.LIMITS["long"]


def test_runs_that_take_turns_never_have_a_step_at_once_and_go_on_when_one_ends(tmp_path):
    """Run two processes with verl's own trainer class. Each step prints the times of its begin and its end."""
    program = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "scripts")!r})
from proof import turns
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
class Trainer(PPOTrainer):
    def __init__(self): self.timing_raw = {{}}
    def on_step_end(self): ...
    def on_sample_end(self): ...
trainer = Trainer()
for step in range(int(sys.argv[1])):
    trainer.on_step_begin()
    print("begin", time.monotonic(), flush=True)
    time.sleep(0.05)
    print("end", time.monotonic(), flush=True)
    trainer._consume_sync_metrics()
assert trainer.timing_raw["turn"] >= 0
"""
    env = os.environ | {turns.FOLDER: str(tmp_path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", program, steps], env=env, stdout=subprocess.PIPE, text=True)
        for steps in ("2", "4")
    ]
    lines = [line.split() for run in runs for line in run.communicate(timeout=120)[0].splitlines()]
    assert [run.returncode for run in runs] == [0, 0]
    moments = [event for event, _ in sorted(lines, key=lambda line: float(line[1]))]
    assert moments == ["begin", "end"] * 6


@pytest.mark.parametrize(("ends", "status"), [([0.1, 0.3, 0.9], "passed"), ([0.1, 0.3], "failed"), ([], "failed")])
def test_a_pretrained_model_has_to_learn_and_its_curve_is_written(prove, monkeypatch, tmp_path, ends, status):
    key = "val-core/secret_words{}/acc/mean@1"
    steps = {number: {key.format(""): end, key.format("_shuffled"): 0.0} for number, end in enumerate(ends)}
    monkeypatch.setattr(training, "steps_of", lambda folder: steps)
    monkeypatch.setattr(Proof, "run", lambda self, *programs: passes(self))
    _, events = prove(LONG[8], model=tmp_path)
    assert events[-1]["results"] == {"8": status}
    curve = next(event["right"] for event in events if event["event"] == "curve")
    assert curve == {str(number): end for number, end in enumerate(ends)}


def test_every_recipe_for_gpus_is_accepted_as_for_machines_that_have_them_the_engine_and_the_data(tmp_path, capsys):
    assert recipes.main() == 0, capsys.readouterr().out
    assert "math/shared: accepted" in capsys.readouterr().out
    unknown = tmp_path / "recipe.yaml"
    unknown.write_text("# python -m verl.trainer.main_ppo +recipe=no_such/recipe\n")
    assert recipes.refusals(unknown)


def of(process: int, title: str, *held: tuple[float, int]) -> list[Sample]:
    return [Sample(time, process, title, size) for time, size in held]


def test_what_a_policy_holds_while_another_one_updates_is_told_from_what_it_holds_itself():
    idle, update = "ray::Workers", "ray::Workers.actor_rollout_update_actor"
    a = [*of(1, idle, (0, 5), (4, 7), (6, 40)), *of(1, update, (1, 90), (3, 80))]
    # At 0.9 and 3.1, b still or already holds the memory of its own update, so these two samples do not count.
    b = [*of(2, idle, (0.9, 70), (2, 6), (3.1, 60)), *of(2, update, (3.5, 80), (5, 85))]
    other = [Sample(4, 3, "ray::TransformersServer", 30)]
    samples = sorted([*a, *b, *other], key=lambda sample: sample.time)
    assert memory_log.held_while_waiting(samples) == {1: (90, 7), 2: (85, 6)}
    assert memory_log.engines(samples) == {3: 30}


def test_the_memory_of_the_card_is_told_by_phase():
    """Ignore samples close to the begin and the end of a phase, where the card may hold memory of two phases."""

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
    """Use a separate process, because the memory log writes until its process ends. verl's base class is real."""
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


def test_what_was_measured_is_shown_beside_the_plan(tmp_path, capsys):
    plan.main(["+recipe=math/shared", "--gpus=4x80", "--json"])
    planned = plan_beside.estimates(f"a warning\n{capsys.readouterr().out}")
    lines = io.StringIO()
    proof = Proof(tmp_path, lines, cpu=False)
    taken = {phase: int(1.25 * gib * plan_beside.GIB) for phase, gib in planned.items()}
    plan_beside.write(proof, taken, planned)
    assert not proof.failed and set(planned) == {"engine start", "weight sync", "rollout", "log-probs", "update"}
    shown = page([json.loads(line) for line in lines.getvalue().splitlines()])
    assert f"| update | {round(1.25 * planned['update'], 2)} | {round(planned['update'], 2)} | 1.25 |" in shown


def test_a_moment_that_was_not_measured_fails(tmp_path):
    proof = Proof(tmp_path, io.StringIO(), cpu=False)
    plan_beside.write(proof, {"update": plan_beside.GIB}, {"update": 1.0, "rollout": 2.0})
    assert proof.failed == 1


def test_the_page_has_the_seconds_of_a_start_and_of_the_parts_of_each_step(tmp_path):
    (tmp_path / "pair/checkpoints").mkdir(parents=True)
    line = Timeline(tmp_path / "pair/checkpoints", {"a": "shared"})
    began = time.time()
    line.begin(1)
    with line.span(UPDATE, "a"):
        pass
    steps = {1: {"timing_s/step": 4.0, "policy/a/timing/update": 2.5, "actor/lr": 1.0}, 2: {"timing_s/step": 3.0}}
    lines = io.StringIO()
    training.record(Proof(tmp_path, lines, cpu=True), training.Run(tmp_path / "pair", steps), began - 60)
    (event,) = (json.loads(line) for line in lines.getvalue().splitlines())
    # The start ends where the first step begins, so the update in that step does not count.
    assert event["start"] == {"from the command to the first step": pytest.approx(60, abs=1)}
    shown = page([event])
    assert "| policy/a/timing/update | 2.50 | - |" in shown and "| timing_s/step | 4.00 | 3.00 |" in shown
    assert "actor/lr" not in shown


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
    """A step without processes that adds up the memory that its orders take."""

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
    """A proof that runs no program. It only checks the training commands of a stage, as if for another machine."""

    def __init__(self, folder: Path, *, gpus: int):
        super().__init__(folder, io.StringIO(), cpu=False)
        self.machine = [f"++ray_kwargs.ray_init.num_gpus={gpus}", "++ray_kwargs.ray_init.num_cpus=32"]
        self.reports: dict[str, CheckReport] = {}

    def run(self, *programs: Program, all_at_once: bool = False):
        for program in programs:
            if MAIN in program.command:
                # Stage 4 of the long order resumes from a checkpoint, which is not made here.
                new = [argument for argument in program.command[3:] if "resume" not in argument]
                folder = f"trainer.default_local_dir={self.folder}/{program.name}-new"
                self.reports[program.name] = examine_command([*new, *self.machine, folder])
        # The output stands for SGLang's version. The checks assume this version if SGLang is not installed.
        return [Ended(0, "0.5.12", 0.0) for _ in programs]

    def start(self, program: Program, out):
        self.run(program)
        return subprocess.Popen(["true"], start_new_session=True)


def write_sparse(config: Qwen3Config, file: Path) -> None:
    """Write weights of real size into a sparse file, which takes almost no space on the disk."""
    with torch.device("meta"):
        parameters = Qwen3ForCausalLM(config).named_parameters()  # the tied output layer is not among them
    header, end = {}, 0
    for name, parameter in parameters:
        begin, end = end, end + 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": [*parameter.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text + b"\x3f\x3f")
        out.truncate(8 + len(text) + end)


@pytest.fixture
def real_models(tmp_path):
    tokens = models.tokenizer(models.VOCABULARY)
    for name, sizes in models.REAL.items():
        folder = tmp_path / "models" / name
        config = models.config(sizes, tokens, "cuda")
        config.save_pretrained(folder)
        tokens.save_pretrained(folder)
        write_sparse(config, folder / "model.safetensors")


@pytest.mark.usefixtures("real_models")
@pytest.mark.parametrize(
    ("order", "stage"),
    [*(("long", number) for number in (1, 2, 3, 4, 7, 9, 10, 11)), *(("short", number) for number in (1, 2, 3, 4))],
)
def test_the_commands_for_a_gpu_pass_the_checks_for_one_gpu(order, stage, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ray_head", lambda proof: nullcontext({}))
    monkeypatch.setattr(plan_beside, "compare", lambda *args: None)
    gpus = 2 if (order, stage) == ("long", 10) else 1
    monkeypatch.setattr(long, "torch", SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: gpus)))
    for module in (long, short, engine_rules):
        monkeypatch.setattr(module, "find_spec", lambda package: True)
    task = tmp_path / "task"
    letters.write(task)
    tiny_model(task / "small", hidden=128, layers=2)
    (task / "large").symlink_to(task / "small")
    (tmp_path / "two/checkpoints/global_step_2").mkdir(parents=True)
    proof = Commands(tmp_path, gpus=gpus)
    gpu_proof.ORDERS[order][stage].work(proof)
    refused = {name: report.problems for name, report in proof.reports.items() if not report.accepted}
    assert proof.reports and not refused


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("order", "stages", "last"),
    [
        ("long", "1,5,6,9", "9 adapters of one base, asynchronous"),
        ("short", "3,4", "4 one agent beside verl's own trainer, step by step"),
    ],
)
def test_the_cpu_form_trains_and_sends_weights(tmp_path, order, stages, last):
    out = tmp_path / "proof.jsonl"
    command = [sys.executable, str(ROOT / "scripts/gpu_proof.py"), "--cpu", f"--order={order}", f"--stages={stages}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [*command, f"--out={out}"], env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    events = [json.loads(line) for line in out.read_text().splitlines()]
    wrong = [event for event in events if event["event"] == "check" and event["passed"] is False]
    assert done.returncode == 0 and not wrong, (wrong, done.stderr)
    assert all(result in ("passed", "skipped: needs CUDA") for result in events[-1]["results"].values())
    assert f"| {last} | passed |" in out.with_suffix(".md").read_text()
