"""The stages that train: each is one or more `python -m verl.trainer.main_ppo`, as a user types it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch

from proof import cluster, memory_log, plan_beside
from proof.stage import HERE, NEEDS_CUDA, Program, Proof, Skipped, end

PACKAGES = "verl-mas verl torch transformers ray tensordict vllm sglang flash-attn torch-memory-saver peft".split()
# On the GPU large enough that what a waiting policy holds can be told from what every process holds.
PARAMETERS = 100_000_000
CORRELATION, GRADIENT = "training/rollout_actor_probs_pearson_corr", "actor/grad_norm"
FLOAT32 = [
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "actor_rollout_ref.rollout.dtype=float32",
]
TWO = ["mas.policies={a:{},b:{}}", "mas.agents={solver:{policy:a},verifier:{policy:b}}"]
WAITING_SHARE = 0.25
TEAM = ("+mas=solver_verifier",)
MAIN = "verl.trainer.main_ppo"
GPUS_APART = 2


@dataclass(frozen=True)
class Run:
    folder: Path
    steps: dict[int, dict[str, float]]

    def values(self, ending: str) -> list[float]:
        """A metric in every step and of every policy."""
        return [value for step in self.steps.values() for key, value in step.items() if key.endswith(ending)]

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"


def prepare(proof: Proof) -> None:
    """Stage 0."""
    gpus: list[str] = []
    proof.write("versions", python=sys.version.split()[0], **{name: _version(name) for name in PACKAGES})
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=False)
        proof.write("nvidia-smi", output=done.stdout.splitlines()[:20])
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    proof.write("machine", gpus=", ".join(gpus), cores=os.cpu_count(), date=time.strftime("%Y-%m-%d"))
    proof.run(
        Program("task", _program("task", str(proof.folder / "task"), str(0 if proof.cpu else PARAMETERS))),
        Program("doctor", [sys.executable, "-m", "verl_mas", "doctor"]),
        # A recipe is for GPUs also where the proof is on the CPU.
        Program("recipes", _program("recipes"), {"VERL_PLATFORM": ""}),
    )


def one_policy(proof: Proof) -> None:
    """Stage 1."""
    overrides = [*FLOAT32, "+mas.agents.verifier.sampling.temperature=0.7"]
    with _memory(proof) as samples:
        (run,) = _train(proof, "one", {"": [*overrides, *_steps(3), "trainer.save_freq=3"]})
    _learns(proof, run, steps=3, correlation=0.999)
    proof.check("the checkpoint of step 3 is there", run.checkpoint(3).is_dir())
    held = memory_log.engines(samples)
    proof.write("memory", engines=held)
    if proof.unless(NEEDS_CUDA if proof.cpu else None, "the engine computes on the GPU"):
        proof.check("the engine computes on the GPU", any(held.values()), held)


def two_policies(proof: Proof) -> None:
    """Stage 2. The learning rate is 0 after the last step, so that stage 4 can compare weights."""
    schedule = ["actor_rollout_ref.actor.optim.lr_scheduler_type=cosine", "actor_rollout_ref.actor.optim.lr=1e-4"]
    overrides = [*TWO, *schedule, *_steps(2), "trainer.save_freq=2", _model(proof, "large")]
    with _memory(proof) as samples, _nvml(proof):
        (run,) = _train(proof, "two", {"": overrides})
    _learns(proof, run, steps=2, correlation=0.99)
    held = memory_log.held_while_waiting(samples)
    proof.write("memory", engines=memory_log.engines(samples), trainers=held, unit="bytes: most, most while waiting")
    what = f"a policy that waits holds less than {WAITING_SHARE} of what it holds while it updates"
    if proof.unless(NEEDS_CUDA if proof.cpu else None, what):
        proof.check(what, len(held) == 2 and all(waits < WAITING_SHARE * most for most, waits in held.values()), held)


def three_kinds(proof: Proof) -> None:
    """Stage 3."""
    with cluster.endpoint() as (url, asked), cluster.ray_head(proof) as env:
        policies = f"mas.policies={{a:{{}},f:{{trainable:false}},r:{{remote:{{base_url:'{url}',model:m}}}}}}"
        team = [
            *("+mas=team", "mas.workflow.name=ensemble", "mas.workflow.args={reasoners:2}", policies),
            "mas.agents={reasoner_0:{policy:a},reasoner_1:{policy:f},judge:{policy:r}}",
        ]
        # The platform's counters are for a cluster of its own.
        joins = ["ray_kwargs.ray_init.num_gpus=null", "ray_kwargs.ray_init.num_cpus=null"] if proof.cpu else []
        (run,) = _train(proof, "three", {"": [*_steps(1), *joins]}, team=team, env=env)
    _learns(proof, run, steps=1, correlation=0.98)
    keys = {key for step in run.steps.values() for key in step}
    proof.check("only the trained policy trains", not any(key.startswith(("policy/f/", "policy/r/")) for key in keys))
    proof.check("the frozen policy serves", run.values("agent/reasoner_1/acts") == [16.0], run.values("/acts"))
    proof.check("the remote policy serves", len(asked) >= 16, len(asked))


def resumed(proof: Proof) -> None:
    """Stage 4."""
    folder = proof.folder / "two" / "checkpoints"
    if not (folder / "global_step_2").is_dir():
        raise Skipped("needs the checkpoint of stage 2")
    place = f"trainer.default_local_dir={folder}"
    common = [*TWO, _model(proof, "large"), place]
    evaluation = [
        *(*common, "trainer.val_only=true", "trainer.val_before_train=true", "trainer.resume_mode=resume_path"),
        f"trainer.resume_from_path={folder}/global_step_2",
    ]
    cosine = "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine"
    run, validation = _train(
        proof, "resumed", {"-on": [*common, cosine, *_steps(3), "trainer.save_freq=1"], "-evaluation": evaluation}
    )
    proof.check("the resumed run makes step 3 alone", list(run.steps) == [3], list(run.steps))
    scores = validation.values("mean@1") + validation.values("pass@1")
    proof.check("the evaluation has a score", bool(scores), scores)
    for policy in ("a", "b"):
        # The checkpoint's learning rate is 0, so step 3 keeps the weights that were loaded.
        saved = [str(folder / f"global_step_{step}" / policy) for step in (2, 3)]
        proof.run(Program(f"same-weights-{policy}", _program("same_weights", *saved)))


def variants(proof: Proof) -> None:
    """Stage 7."""
    fixed = [
        "actor_rollout_ref.actor.use_dynamic_bsz=false",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=3",
    ]
    same = [*FLOAT32, "actor_rollout_ref.rollout.full_determinism=true", "data.shuffle=false", *_steps(1)]
    wanted = {
        "packed": [*same, "actor_rollout_ref.model.use_remove_padding=true"],
        "padded": [*same, "actor_rollout_ref.model.use_remove_padding=false"],
        "fixed": [*FLOAT32, *fixed, *_steps(1)],
    }
    if proof.unless(None if find_spec("peft") else "peft is not installed", "LoRA"):
        wanted["lora"] = [
            *(*FLOAT32, *_steps(1), "actor_rollout_ref.model.lora_rank=8"),
            "++actor_rollout_ref.model.lora.merge=true",
        ]
    found = dict(zip(wanted, _train(proof, "", wanted), strict=True))
    for run in found.values():
        _learns(proof, run, steps=1, correlation=0.999)
    packed, padded = (max(found[name].values(GRADIENT), default=0.0) for name in ("packed", "padded"))
    equal = packed > 0 and math.isclose(packed, padded, rel_tol=1e-3)
    proof.check("without padding the gradient is the same", equal, [packed, padded])


def adapters(proof: Proof) -> None:
    """Stage 9: of one base, in the asynchronous mode on the same GPU."""
    policies = "mas.policies={main:{trainable:false},a:{adapter_of:main},b:{adapter_of:main}}"
    overrides = [
        *("++actor_rollout_ref.model.lora_rank=8", policies, TWO[1], "actor_rollout_ref.rollout.load_format=auto"),
        *("+mas/mode=colocate_async", "actor_rollout_ref.actor.optim.lr=1e-4", *_steps(3)),
    ]
    (run,) = _train(proof, "adapters", {"": overrides})
    _learns(proof, run, steps=3, correlation=0.98)
    _is_stale(proof, run)


def apart(proof: Proof) -> None:
    """Stage 10: engines on a GPU of their own, which get the weights of two policies: with NCCL, on the CPU by Ray."""
    if not proof.cpu and torch.cuda.device_count() < GPUS_APART:
        raise Skipped(f"needs {GPUS_APART} GPUs")
    missing = None if proof.cpu or find_spec("cupy") else "cupy is not installed, which verl's nccl backend imports"
    if proof.unless(missing, "weights to engines on another GPU"):
        more = ["++ray_kwargs.ray_init.num_gpus=2"] if proof.cpu else []
        # In step 2 the learning rate is 0. Its rows are one update old; those of step 3 are of the trainer's weights if
        # what was sent after step 1 has arrived.
        schedule = [
            f"actor_rollout_ref.actor.optim.{setting}" for setting in ("lr_scheduler_type=cosine", "num_cycles=1.5")
        ]
        overrides = [*TWO, "+mas/mode=separate_async", *FLOAT32, *schedule, *_steps(3), *more]
        (run,) = _train(proof, "apart", {"": overrides})
        _learns(proof, run, steps=3, correlation=0.0)
        _is_stale(proof, run)
        old, new = (Run(run.folder, {step: run.steps.get(step, {})}).values(CORRELATION) for step in (2, 3))
        arrived = len(old) == len(new) == 2 and max(old) < 0.99 and min(new) > 0.999
        proof.check("the engines of both policies have got the weights of step 1", arrived, [old, new])


def killed(proof: Proof) -> None:
    """Stage 11: an engine is killed after the first checkpoint, in the asynchronous mode; the same command resumes."""
    overrides = [*TWO, "+mas/mode=colocate_async", *_steps(8), "trainer.save_freq=1"]
    (program,) = _commands(proof, "killed", {"": overrides}, team=TEAM, env={})
    saved = proof.folder / "killed/checkpoints/latest_checkpointed_iteration.txt"
    with _memory(proof), (proof.folder / "11-killed.log").open("w") as log:
        process = proof.start(program, log)
        try:
            while not saved.exists() and process.poll() is None and proof.left:
                time.sleep(0.1)
            at = int(saved.read_text()) if saved.exists() else 0
            engines = memory_log.engines(memory_log.read(_memory_folder(proof)))
            proof.check("there is an engine and a checkpoint", bool(at and engines), [at, [*engines]])
            if not engines:
                return
            os.kill(min(engines), signal.SIGKILL)
            code = process.wait(proof.left)
        finally:
            end(process)
    output = (proof.folder / "11-killed.log").read_text(errors="replace")
    proof.check("the run ends, and names what it lost", code > 0 and "verl-mas: lost:" in output, code)
    (run,) = _train(proof, "killed", {"": overrides})
    resumes = "Resuming from" in (proof.folder / "11-killed.log").read_text(errors="replace")
    left = max(run.steps, default=0) == 8
    proof.check("the same command resumes and makes the steps that are left", resumes and left, [*run.steps])


def pretrained(proof: Proof) -> None:
    """Stage 8. The tasks are those of the recipe; only the model is another one."""
    if proof.model is None:
        raise Skipped("needs --model")
    folder, tasks = proof.folder / "pretrained", proof.folder / "secret_words"
    folder.mkdir(exist_ok=True)
    engine = "transformers" if proof.cpu or not find_spec("vllm") else "vllm"
    overrides = [
        *(["+platform=cpu", "+recipe=smollm2/laptop"] if proof.cpu else ["+recipe=smollm2/qwen3"]),
        *(f"actor_rollout_ref.model.path={proof.model}", f"actor_rollout_ref.rollout.name={engine}"),
        *(f"data.train_files={tasks}/train.parquet", f"data.val_files={tasks}/test.parquet"),
        *(f"trainer.default_local_dir={folder}/checkpoints", f"hydra.run.dir={folder}/hydra", "trainer.save_freq=-1"),
    ]
    data = [sys.executable, "-m", "verl_mas", "data", "smollm2", "--no-model", "--out", str(tasks)]
    proof.run(Program("secret_words", data))
    with _memory(proof) as samples:
        proof.run(_logged(proof, Program("pretrained", [sys.executable, "-m", MAIN, *overrides]), folder))
    run = Run(folder, _steps_of(folder))
    if proof.unless(
        None if engine == "vllm" else "the formulas are those of vLLM and SGLang", "memory beside the plan"
    ):
        plan_beside.compare(proof, memory_log.most_by_phase(samples), overrides, run.steps)
    success = {
        kind: {number: step[key] for number, step in run.steps.items() if key in step}
        for kind, key in ((kind, f"val-core/secret_words{kind}/acc/mean@1") for kind in ("", "_shuffled"))
    }
    proof.write("curve", right=success[""], with_messages_of_other_tasks=success["_shuffled"])
    right = [*success[""].values()]
    proof.check(
        "held-out words that are right: 0.3 more at the end", len(right) > 1 and right[-1] - right[0] >= 0.3, right
    )


def _train(
    proof: Proof,
    name: str,
    wanted: dict[str, list[str]],
    *,
    team: Sequence[str] = TEAM,
    env: Mapping[str, str] = MappingProxyType({}),
) -> list[Run]:
    """Runs whose names begin with `name`; raises nothing if one fails, as that is recorded."""
    proof.run(*_commands(proof, name, wanted, team=team, env=env))
    return [Run(folder, _steps_of(folder)) for folder in (proof.folder / f"{name}{kind}" for kind in wanted)]


def _commands(
    proof: Proof, name: str, wanted: dict[str, list[str]], *, team: Sequence[str], env: Mapping[str, str]
) -> list[Program]:
    if not (proof.folder / "task" / "small").is_dir():
        proof.python("task", str(proof.folder / "task"), str(0 if proof.cpu else PARAMETERS))
    programs = []
    for kind, overrides in wanted.items():
        folder = proof.folder / f"{name}{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", MAIN, *_arguments(proof, folder, team), *overrides]
        programs.append(_logged(proof, Program(folder.name, command, env), folder))
    return programs


def _logged(proof: Proof, program: Program, folder: Path) -> Program:
    """Its metrics are in the folder, and its processes write what they hold."""
    variables = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), "PYTHONPATH": _path()}
    variables |= {"VERL_USE_EXTERNAL_MODULES": "proof.memory_log", memory_log.FOLDER: str(_memory_folder(proof))}
    # A cluster that was started before the run does not have its variables.
    sent = [f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in variables.items()]
    return Program(program.name, [*program.command, *sent], {**variables, **program.env})


def _arguments(proof: Proof, folder: Path, team: Sequence[str]) -> list[str]:
    task = proof.folder / "task"
    return [
        *(["+platform=cpu"] if proof.cpu else []),
        *(*team, "algorithm.adv_estimator=agent_grpo"),
        *(f"data.train_files={task}/train.parquet", f"data.val_files={task}/test.parquet"),
        *("data.train_batch_size=4", "data.max_prompt_length=512", "data.max_response_length=16"),
        *("data.dataloader_num_workers=0", "reward.num_workers=1"),
        "reward.custom_reward_function.path=pkg://verl_mas.testing.letters",
        "reward.custom_reward_function.name=score",
        *(_model(proof, "small"), "actor_rollout_ref.model.use_remove_padding=true"),
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


def _steps(count: int) -> list[str]:
    return [f"trainer.total_training_steps={count}", "trainer.total_epochs=100"]


def _model(proof: Proof, name: str) -> str:
    return f"actor_rollout_ref.model.path={proof.folder}/task/{name}"


def _steps_of(folder: Path) -> dict[int, dict[str, float]]:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {record["step"]: record["data"] for record in map(json.loads, lines)}


def _learns(proof: Proof, run: Run, *, steps: int, correlation: float) -> None:
    """Every step has a gradient, and engine and trainer agree about the tokens' probabilities."""
    name, gradients, found = run.folder.name, run.values(GRADIENT), run.values(CORRELATION)
    proof.check(f"{name}: {steps} steps with a gradient", len(run.steps) == steps and min(gradients, default=0) > 0)
    agree = bool(found) and min(found) > correlation
    proof.check(f"{name}: correlation of engine and trainer above {correlation}", agree, found)


def _is_stale(proof: Proof, run: Run) -> None:
    found = run.values("off_policy/trajectory_staleness/max")
    proof.check(f"{run.folder.name}: rows are at most one update old", bool(found) and max(found) <= 1, found)


@contextmanager
def _memory(proof: Proof) -> Iterator[list[memory_log.Sample]]:
    """Filled at the end with what the processes of the stage held."""
    folder = _memory_folder(proof)
    found: list[memory_log.Sample] = []
    shutil.rmtree(folder)
    _memory_folder(proof)
    try:
        yield found
    finally:
        found += memory_log.read(folder)


def _memory_folder(proof: Proof) -> Path:
    folder = proof.folder / "memory"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def _nvml(proof: Proof) -> Iterator[None]:
    """Records the most that NVML saw in each process: what torch does not count, such as contexts, is in it."""
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


def _program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *arguments]


def _path() -> str:
    return os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
