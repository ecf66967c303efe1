"""The stages of `gpu_proof.py --order long`.

They test embedded engines, checkpoints and resuming, kinds of policies, killed engines, and a pretrained LLM.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from importlib.util import find_spec

import torch

from proof import cluster, memory_log, plan_beside, training
from proof.stage import NEEDS_CUDA, Program, Proof, Skipped, end
from proof.training import CORRELATION, GRADIENT, MAIN, TWO, Run, commands, for_steps, is_stale, learns, model, train

FLOAT32 = [
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "actor_rollout_ref.rollout.dtype=float32",
]
WAITING_SHARE = 0.25
GPUS_APART = 2


def prepare(proof: Proof) -> None:
    """Stage 0: record the machine, write the task and its models, run `doctor`, and check all recipes."""
    training.record_machine(proof)
    proof.run(
        training.task_program(proof),
        Program("doctor", [sys.executable, "-m", "verl_mas", "doctor"]),
        # The recipes are for GPUs, so the variable must be empty even if the proof runs on the CPU.
        Program("recipes", training.program("recipes"), {"VERL_PLATFORM": ""}),
    )


def one_policy(proof: Proof) -> None:
    """Stage 1: train one policy in float32 for three steps and save a checkpoint."""
    overrides = [*FLOAT32, "+mas.agents.verifier.sampling.temperature=0.7"]
    with training.memory(proof) as samples:
        (run,) = train(proof, "one", {"": [*overrides, *for_steps(3), "trainer.save_freq=3"]})
    learns(proof, run, steps=3, correlation=0.999)
    proof.check("the checkpoint of step 3 is there", run.checkpoint(3).is_dir())
    held = memory_log.engines(samples)
    proof.write("memory", engines=held)
    if proof.unless(NEEDS_CUDA if proof.cpu else None, "the engine computes on the GPU"):
        proof.check("the engine computes on the GPU", any(held.values()), held)


def two_policies(proof: Proof) -> None:
    """Stage 2: train two policies on one GPU. The learning rate is 0 after the last step, so stage 4 can compare
    weights."""
    schedule = ["actor_rollout_ref.actor.optim.lr_scheduler_type=cosine", "actor_rollout_ref.actor.optim.lr=1e-4"]
    overrides = [*TWO, *schedule, *for_steps(2), "trainer.save_freq=2", model(proof, "large")]
    with training.memory(proof) as samples, training.nvml(proof):
        (run,) = train(proof, "two", {"": overrides})
    learns(proof, run, steps=2, correlation=0.99)
    held = memory_log.held_while_waiting(samples)
    proof.write("memory", engines=memory_log.engines(samples), trainers=held, unit="bytes: most, most while waiting")
    what = f"a policy that waits holds less than {WAITING_SHARE} of what it holds while it updates"
    if proof.unless(NEEDS_CUDA if proof.cpu else None, what):
        proof.check(what, len(held) == 2 and all(waits < WAITING_SHARE * most for most, waits in held.values()), held)


def three_kinds(proof: Proof) -> None:
    """Stage 3: train a team with a trained, a frozen and a remote policy on a running Ray cluster."""
    with cluster.endpoint() as (url, asked), cluster.ray_head(proof) as env:
        policies = f"mas.policies={{a:{{}},f:{{trainable:false}},r:{{remote:{{base_url:'{url}',model:m}}}}}}"
        team = [
            *(
                "+mas=team",
                "algorithm.adv_estimator=agent_grpo",
                "mas.workflow.name=ensemble",
                "mas.workflow.args={reasoners:2}",
                policies,
            ),
            "mas.agents={reasoner_0:{policy:a},reasoner_1:{policy:f},judge:{policy:r}}",
        ]
        # `+platform=cpu` sets these numbers for a new cluster. This run joins a running cluster, so they must be null.
        joins = ["ray_kwargs.ray_init.num_gpus=null", "ray_kwargs.ray_init.num_cpus=null"] if proof.cpu else []
        (run,) = train(proof, "three", {"": [*for_steps(1), *joins]}, team=team, env=env)
    learns(proof, run, steps=1, correlation=0.98)
    keys = {key for step in run.steps.values() for key in step}
    proof.check("only the trained policy trains", not any(key.startswith(("policy/f/", "policy/r/")) for key in keys))
    proof.check("the frozen policy serves", run.values("agent/reasoner_1/acts") == [16.0], run.values("/acts"))
    proof.check("the remote policy serves", len(asked) >= 16, len(asked))


def resumed(proof: Proof) -> None:
    """Stage 4: resume the run of stage 2 for one step, and evaluate its checkpoint."""
    folder = proof.folder / "two" / "checkpoints"
    if not (folder / "global_step_2").is_dir():
        raise Skipped("needs the checkpoint of stage 2")
    place = f"trainer.default_local_dir={folder}"
    common = [*TWO, model(proof, "large"), place]
    evaluation = [
        *(*common, "trainer.val_only=true", "trainer.val_before_train=true", "trainer.resume_mode=resume_path"),
        f"trainer.resume_from_path={folder}/global_step_2",
    ]
    cosine = "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine"
    run, validation = train(
        proof, "resumed", {"-on": [*common, cosine, *for_steps(3), "trainer.save_freq=1"], "-evaluation": evaluation}
    )
    proof.check("the resumed run makes step 3 alone", list(run.steps) == [3], list(run.steps))
    scores = validation.values("mean@1") + validation.values("pass@1")
    proof.check("the evaluation has a score", bool(scores), scores)
    for policy in ("a", "b"):
        # The checkpoint's learning rate is 0, so step 3 keeps the weights that were loaded.
        saved = [str(folder / f"global_step_{step}" / policy) for step in (2, 3)]
        proof.run(Program(f"same-weights-{policy}", training.program("same_weights", *saved)))


def variants(proof: Proof) -> None:
    """Stage 7: train with and without padding, with fixed micro batches, and with LoRA."""
    fixed = [
        "actor_rollout_ref.actor.use_dynamic_bsz=false",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=3",
    ]
    same = [*FLOAT32, "actor_rollout_ref.rollout.full_determinism=true", "data.shuffle=false", *for_steps(1)]
    wanted = {
        "packed": [*same, "actor_rollout_ref.model.use_remove_padding=true"],
        "padded": [*same, "actor_rollout_ref.model.use_remove_padding=false"],
        "fixed": [*FLOAT32, *fixed, *for_steps(1)],
    }
    if proof.unless(None if find_spec("peft") else "peft is not installed", "LoRA"):
        wanted["lora"] = [
            *(*FLOAT32, *for_steps(1), "actor_rollout_ref.model.lora_rank=8"),
            "++actor_rollout_ref.model.lora.merge=true",
        ]
    found = dict(zip(wanted, train(proof, "", wanted), strict=True))
    for run in found.values():
        learns(proof, run, steps=1, correlation=0.999)
    packed, padded = (max(found[name].values(GRADIENT), default=0.0) for name in ("packed", "padded"))
    equal = packed > 0 and math.isclose(packed, padded, rel_tol=1e-3)
    proof.check("without padding the gradient is the same", equal, [packed, padded])


def adapters(proof: Proof) -> None:
    """Stage 9: train two adapters of one base model in the asynchronous mode, with the engines on the same GPU."""
    policies = "mas.policies={main:{trainable:false},a:{adapter_of:main},b:{adapter_of:main}}"
    overrides = [
        *("++actor_rollout_ref.model.lora_rank=8", policies, TWO[1], "actor_rollout_ref.rollout.load_format=auto"),
        *("+mas/mode=colocate_async", "actor_rollout_ref.actor.optim.lr=1e-4", *for_steps(3)),
    ]
    (run,) = train(proof, "adapters", {"": overrides})
    learns(proof, run, steps=3, correlation=0.98)
    is_stale(proof, run)


def apart(proof: Proof) -> None:
    """Stage 10: train two policies whose engines are on a separate GPU. NCCL, or Ray on the CPU, sends weights."""
    if not proof.cpu and torch.cuda.device_count() < GPUS_APART:
        raise Skipped(f"needs {GPUS_APART} GPUs")
    missing = None if proof.cpu or find_spec("cupy") else "cupy is not installed, which verl's nccl backend imports"
    if proof.unless(missing, "weights to engines on another GPU"):
        more = ["++ray_kwargs.ray_init.num_gpus=2"] if proof.cpu else []
        # The learning rate is 0 in step 2, and the rows of step 2 are one update old. The rows of step 3 were sampled
        # with the trainer's weights if the weights that were sent after step 1 have arrived.
        schedule = [
            f"actor_rollout_ref.actor.optim.{setting}" for setting in ("lr_scheduler_type=cosine", "num_cycles=1.5")
        ]
        overrides = [*TWO, "+mas/mode=separate_async", *FLOAT32, *schedule, *for_steps(3), *more]
        (run,) = train(proof, "apart", {"": overrides})
        learns(proof, run, steps=3, correlation=0.0)
        is_stale(proof, run)
        old, new = (Run(run.folder, {step: run.steps.get(step, {})}).values(CORRELATION) for step in (2, 3))
        arrived = len(old) == len(new) == 2 and max(old) < 0.99 and min(new) > 0.999
        proof.check("the engines of both policies have got the weights of step 1", arrived, [old, new])


def killed(proof: Proof) -> None:
    """Stage 11: kill an engine after the first checkpoint in the asynchronous mode; resume with the same command."""
    overrides = [*TWO, "+mas/mode=colocate_async", *for_steps(8), "trainer.save_freq=1"]
    (program,) = commands(proof, "killed", {"": overrides})
    saved = proof.folder / "killed/checkpoints/latest_checkpointed_iteration.txt"
    with training.memory(proof), (proof.folder / "11-killed.log").open("w") as log:
        process = proof.start(program, log)
        try:
            while not saved.exists() and process.poll() is None and proof.left:
                time.sleep(0.1)
            at = int(saved.read_text()) if saved.exists() else 0
            engines = memory_log.engines(memory_log.read(training.memory_folder(proof)))
            proof.check("there is an engine and a checkpoint", bool(at and engines), [at, [*engines]])
            if not engines:
                return
            os.kill(min(engines), signal.SIGKILL)
            code = process.wait(proof.left)
        finally:
            end(process)
    output = (proof.folder / "11-killed.log").read_text(errors="replace")
    proof.check("the run ends, and names what it lost", code > 0 and "verl-mas: lost:" in output, code)
    (run,) = train(proof, "killed", {"": overrides})
    resumes = "Resuming from" in (proof.folder / "11-killed.log").read_text(errors="replace")
    left = max(run.steps, default=0) == 8
    proof.check("the same command resumes and makes the steps that are left", resumes and left, [*run.steps])


def pretrained(proof: Proof) -> None:
    """Stage 8: train the LLM of `--model` on the tasks of the recipes `smollm2`."""
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
    with training.memory(proof) as samples:
        proof.run(training.logged(proof, Program("pretrained", [sys.executable, "-m", MAIN, *overrides]), folder))
    run = Run(folder, training.steps_of(folder))
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
