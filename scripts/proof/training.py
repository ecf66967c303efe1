"""Start runs with a user's command, `python -m verl.trainer.main_ppo`, and read their metrics, spans and memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from proof import memory_log, turns
from proof.stage import HERE, Program, Proof, end

PACKAGES = "verl-mas verl torch transformers ray tensordict vllm sglang flash-attn flashinfer-python peft".split()
# Size of the large model on a GPU. A smaller model would not stand out from the memory that every process holds.
PARAMETERS = 100_000_000
CORRELATION, GRADIENT = "training/rollout_actor_probs_pearson_corr", "actor/grad_norm"
# Parts of the names of the metrics that a "run" event repeats; all metrics are in the run's metrics.jsonl.
REPEATED = ("timing_s/", "/timing/", "training/rollout_", "staleness")
MAIN = "verl.trainer.main_ppo"
TEAM = ("+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo")
TWO = ["mas.policies={a:{},b:{}}", "mas.agents={solver:{policy:a},verifier:{policy:b}}"]


@dataclass(frozen=True)
class Run:
    folder: Path
    steps: dict[int, dict[str, float]]

    def values(self, ending: str) -> list[float]:
        """Return the values of all metrics with this ending, so that a metric of every policy is included."""
        return [value for step in self.steps.values() for key, value in step.items() if key.endswith(ending)]

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"


def record_machine(proof: Proof) -> None:
    gpus: list[str] = []
    proof.write("versions", python=sys.version.split()[0], **{name: _version(name) for name in PACKAGES})
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=False)
        proof.write("nvidia-smi", output=done.stdout.splitlines()[:20])
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    proof.write("machine", gpus=", ".join(gpus), cores=os.cpu_count(), date=time.strftime("%Y-%m-%d"))


def task_program(proof: Proof) -> Program:
    return Program("task", program("task", str(proof.folder / "task"), str(0 if proof.cpu else PARAMETERS)))


def train(
    proof: Proof,
    name: str,
    wanted: dict[str, list[str]],
    *,
    team: Sequence[str] = TEAM,
    env: Mapping[str, str] = MappingProxyType({}),
    python: str = sys.executable,
    all_at_once: bool = False,
) -> list[Run]:
    """Train the runs of `wanted`, whose names begin with `name`. A run that fails raises no error; it is recorded."""
    programs = commands(proof, name, wanted, team=team, env=env, python=python)
    ended = proof.run(*programs, all_at_once=all_at_once)
    runs = [Run(folder, steps_of(folder)) for folder in (proof.folder / f"{name}{kind}" for kind in wanted)]
    for run, done in zip(runs, ended, strict=False):
        record(proof, run, done.began)
    return runs


def record(proof: Proof, run: Run, began: float) -> None:
    """Write the seconds of the run's start and the repeated metrics of each step. `began`: the time at which the
    command started."""
    steps = {
        number: {key: value for key, value in step.items() if any(part in key for part in REPEATED)}
        for number, step in run.steps.items()
    }
    proof.write("run", name=run.folder.name, start=start_spans(run.folder, began), steps=steps)


def start_spans(folder: Path, began: float) -> dict[str, float]:
    """Return the seconds of the whole start and of each of its parts, as the run's timeline has them."""
    file = folder / "checkpoints" / "timeline.json"
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    spans: dict[str, float] = {}
    for event in (json.loads(line.rstrip(",")) for line in lines):
        if event["name"] == "step":
            return {**spans, "from the command to the first step": round(event["ts"] / 1e6 - began, 1)}
        if event.get("dur"):
            spans[f"{event['name']} {event['args']['policy']}".strip()] = round(event["dur"] / 1e6, 2)
    return spans


def commands(
    proof: Proof,
    name: str,
    wanted: dict[str, list[str]],
    *,
    team: Sequence[str] = TEAM,
    env: Mapping[str, str] = MappingProxyType({}),
    python: str = sys.executable,
) -> list[Program]:
    if not (proof.folder / "task" / "small").is_dir():
        proof.run(task_program(proof))
    programs = []
    for kind, overrides in wanted.items():
        folder = proof.folder / f"{name}{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [python, "-m", MAIN, *_arguments(proof, folder, team), *overrides]
        programs.append(logged(proof, Program(folder.name, command, env), folder))
    return programs


def logged(proof: Proof, program: Program, folder: Path) -> Program:
    """Return the program with variables that make a run log its metrics into `folder`, and the memory of its
    processes into the folder `memory` of the proof."""
    variables = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), "PYTHONPATH": _path()}
    variables |= {"VERL_USE_EXTERNAL_MODULES": "proof.memory_log,proof.turns"}
    of_turns = {name: value for name, value in program.env.items() if name == turns.FOLDER}
    variables |= {memory_log.FOLDER: str(memory_folder(proof)), **of_turns}
    # Send the variables to Ray as well, because a cluster that started before the run does not have them.
    sent = [f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in variables.items()]
    return Program(program.name, [*program.command, *sent], {**variables, **program.env})


def _arguments(proof: Proof, folder: Path, team: Sequence[str]) -> list[str]:
    task = proof.folder / "task"
    return [
        *(["+platform=cpu"] if proof.cpu else []),
        *team,
        *(f"data.train_files={task}/train.parquet", f"data.val_files={task}/test.parquet"),
        *("data.train_batch_size=4", "data.max_prompt_length=512", "data.max_response_length=16"),
        *("data.dataloader_num_workers=0", "reward.num_workers=1"),
        "reward.custom_reward_function.path=pkg://verl_mas.testing.letters",
        "reward.custom_reward_function.name=score",
        *(model(proof, "small"), "actor_rollout_ref.model.use_remove_padding=true"),
        "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        *("actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.use_dynamic_bsz=true"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=1e-3"),
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        *("actor_rollout_ref.rollout.name=transformers", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.max_model_len=1024"),
        *("actor_rollout_ref.rollout.calculate_log_probs=true", "actor_rollout_ref.rollout.free_cache_engine=true"),
        *("actor_rollout_ref.rollout.agent.num_workers=1", "actor_rollout_ref.rollout.val_kwargs.n=1"),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *("trainer.n_gpus_per_node=1", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=-1", "trainer.logger=[console,file]"),
        *(f"trainer.default_local_dir={folder}/checkpoints", f"hydra.run.dir={folder}/hydra"),
    ]


def for_steps(count: int) -> list[str]:
    return [f"trainer.total_training_steps={count}", "trainer.total_epochs=100"]


def model(proof: Proof, name: str) -> str:
    return f"actor_rollout_ref.model.path={proof.folder}/task/{name}"


def steps_of(folder: Path) -> dict[int, dict[str, float]]:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {record["step"]: record["data"] for record in map(json.loads, lines)}


def learns(proof: Proof, run: Run, *, steps: int, correlation: float) -> None:
    """Check that every step has a gradient, and that engine and trainer agree about the tokens' probabilities."""
    name, gradients, found = run.folder.name, run.values(GRADIENT), run.values(CORRELATION)
    proof.check(f"{name}: {steps} steps with a gradient", len(run.steps) == steps and min(gradients, default=0) > 0)
    agree = bool(found) and min(found) > correlation
    proof.check(f"{name}: correlation of engine and trainer above {correlation}", agree, found)


def is_stale(proof: Proof, run: Run) -> None:
    found = run.values("off_policy/trajectory_staleness/max")
    proof.check(f"{run.folder.name}: rows are at most one update old", bool(found) and max(found) <= 1, found)


@contextmanager
def memory(proof: Proof) -> Iterator[list[memory_log.Sample]]:
    """Yield a list that receives the memory samples of the stage's processes when the context ends."""
    folder = memory_folder(proof)
    found: list[memory_log.Sample] = []
    shutil.rmtree(folder)
    memory_folder(proof)
    try:
        yield found
    finally:
        found += memory_log.read(folder)


def memory_folder(proof: Proof) -> Path:
    folder = proof.folder / "memory"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def nvml(proof: Proof) -> Iterator[None]:
    """Record the peak memory of each process as NVML reports it. It includes memory that torch does not count, such
    as CUDA contexts."""
    if not shutil.which("nvidia-smi"):
        yield
        return
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "-lms", "200"]
    log = proof.folder / "nvml.csv"
    with log.open("w") as out:
        process = proof.start(Program("nvml", query), out)
        try:
            yield
        finally:
            end(process)
    most: dict[str, int] = {}
    for pid, _, used in (line.partition(", ") for line in log.read_text().splitlines()):
        most[pid] = max(most.get(pid, 0), int(used) if used.isdecimal() else 0)
    proof.write("nvml", most_mib_by_process=most)


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *arguments]


def _path() -> str:
    return os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
