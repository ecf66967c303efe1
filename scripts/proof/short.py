"""The stages of `gpu_proof.py --order short`. They take fourteen minutes on one GPU, and download nothing.

They test the documented installation, teams on SGLang, two LLMs of real width, every path of the trainer, and one
agent compared with verl alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeAlias

from packaging.version import Version

from proof import memory_log, plan_beside, training, turns
from proof.stage import HERE, NEEDS_CUDA, Program, Proof, Skipped
from proof.training import TEAM, TWO, Run, for_steps, learns, train

ENGINES = ("vllm", "sglang", "transformers")
# The first release of SGLang that serves several adapters to verl 0.9.1.
SGLANG_ADAPTERS = Version("0.5.17")
ADAPTERS = "mas.policies={main:{trainable:false},a:{adapter_of:main},b:{adapter_of:main}}"
# Step 1 is a warm-up. Steps 1 and 2 compute old log-probs in a separate pass, and step 3 has no such pass
# (`mas.old_log_probs_every`).
STEPS = 3
STOCK_STEPS = 4
MOST_OF_STOCK = 1.1
Nested: TypeAlias = dict[str, Any]
VERSION = "from importlib.metadata import version; print(version('sglang'))"


@dataclass(frozen=True)
class TrainerPath:
    """A way to compute attention and log-probs, and the package that it needs. With `trees`, a prefix that several rows
    share is computed once."""

    attention: str
    fused: bool
    package: str = ""
    trees: bool = False

    @property
    def missing(self) -> str | None:
        return f"{self.package} is not installed" if self.package and not find_spec(self.package) else None

    def policy(self, model: str) -> Nested:
        settings = {"path": model, "use_fused_kernels": self.fused}
        overrides = {"model": {**settings, "override_config": {"attn_implementation": self.attention}}}
        return {"overrides": overrides, "shared_prefixes": self.trees}


PATHS = {
    "sdpa": TrainerPath("sdpa", False),
    "fused": TrainerPath("sdpa", True),
    "flash": TrainerPath("flash_attention_2", False, "flash_attn"),
    "trees": TrainerPath("sdpa", False, trees=True),
}


def installed(proof: Proof) -> None:
    """Stage 0: record the installed packages, make the models, and start vLLM with and without a CUDA compiler."""
    training.record_machine(proof)
    models = training.program("models", str(proof.folder / "models"), "cpu" if proof.cpu else "cuda")
    proof.run(training.task_program(proof), Program("models", models))
    hidden = without_nvcc(proof)
    doctor = [sys.executable, "-m", "verl_mas", "doctor"]
    wanted = [Program("doctor", doctor), Program("doctor-no-nvcc", doctor, hidden, may_fail=True)]
    what = "vLLM starts as documented"
    if proof.unless(None if find_spec("vllm") else "vllm is not installed", what):
        start = training.program("engine_start", str(proof.folder / "task/small"))
        caches = {"FLASHINFER_WORKSPACE_BASE": str(proof.folder / "flashinfer")}
        wanted += [Program("vllm", start, caches), Program("vllm-no-nvcc", start, hidden, may_fail=True)]
    ended = dict(zip((program.name for program in wanted), proof.run(*wanted), strict=True))
    for name in ("vllm", "vllm-no-nvcc"):
        if name in ended:
            proof.write("engine start", name=name, found=ended[name].output.partition("\n")[0])
    if "vllm-no-nvcc" in ended:
        starts, named = ended["vllm-no-nvcc"].exit_code == 0, "nvcc" in ended["doctor-no-nvcc"].output
        proof.check("without nvcc vLLM starts, or doctor names nvcc", starts or named, {"starts": starts})


def without_nvcc(proof: Proof) -> dict[str, str]:
    """Return environment variables that hide nvcc and the kernels that were compiled earlier with nvcc."""
    empty = proof.folder / "no-nvcc"
    empty.mkdir(exist_ok=True)
    folders = os.environ.get("PATH", "").split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if not os.path.exists(f"{folder}/nvcc"))
    return {"PATH": path, "CUDA_HOME": str(empty), "FLASHINFER_WORKSPACE_BASE": str(empty)}


def sglang(proof: Proof) -> None:
    """Stage 1: train two policies together, two policies in phases, and adapters on SGLang.

    The runs may overlap, because nothing is timed.
    """
    found = proof.run(Program("sglang-version", [proof.sglang, "-c", VERSION], may_fail=True))[0]
    version = found.output.split()[-1] if found.exit_code == 0 and not proof.cpu else None
    reason = NEEDS_CUDA if proof.cpu else "sglang is not installed: --sglang-python"
    if proof.unless(None if version else reason, "teams on SGLang"):
        engine, python = "sglang", proof.sglang
    elif proof.cpu:
        # Train the same teams on the embedded engine, so that their commands are also tested with `--cpu`.
        engine, python = "transformers", sys.executable
    else:
        raise Skipped(reason)
    common = [*_engine(engine, 0.1), *for_steps(STEPS)]
    wanted = {
        "together": [*common, *TWO],
        "phases": [*common, *TWO, "+mas.pools.shared.serving=phases"],
        "adapters": [
            *(*common, TWO[1], ADAPTERS, "++actor_rollout_ref.model.lora_rank=8"),
            "actor_rollout_ref.rollout.load_format=auto",
        ],
    }
    old = version and Version(version) < SGLANG_ADAPTERS
    if not proof.unless(f"SGLang {version} is older than {SGLANG_ADAPTERS}" if old else None, "adapters on SGLang"):
        del wanted["adapters"]
    for run in train(proof, f"{engine}-", wanted, python=python):
        learns(proof, run, steps=STEPS, correlation=0.95)


def pair(proof: Proof) -> None:
    """Stage 2: train a 1.7B and a 4B policy on the fastest path of this machine, with no other run on the GPU.

    Record the parts of a step, and compare the memory with the plan.
    """
    attention = PATHS["sdpa" if PATHS["flash"].missing else "flash"].attention
    path, engine = TrainerPath(attention, fused=True), _fastest_engine()
    policies = {"a": path.policy(_real(proof, "1.7b")), "b": path.policy(_real(proof, "4b"))}
    # In float32, the update of the 4B policy alone takes 80 GiB.
    policies["b"]["overrides"]["actor"] = {"fsdp_config": {"model_dtype": "fp32" if proof.cpu else "bf16"}}
    overrides = [*_real_run(proof, engine, 0.3), f"mas.policies={hydra(policies)}", TWO[1], *for_steps(STEPS)]
    proof.write("path", attention=attention, fused=True, engine=engine)
    with training.memory(proof) as samples, training.nvml(proof):
        (run,) = train(proof, "pair", {"": overrides})
    learns(proof, run, steps=STEPS, correlation=0.95)
    reason = None if engine == "vllm" else "the formulas are those of vLLM and SGLang"
    if proof.unless(NEEDS_CUDA if proof.cpu else reason, "memory beside the plan"):
        (command,) = training.commands(proof, "pair", {"": overrides})
        arguments = [word for word in command.command[3:] if "runtime_env" not in word]
        plan_beside.compare(proof, memory_log.most_by_phase(samples), arguments, run.steps)


def paths(proof: Proof) -> None:
    """Stage 3: train, in one run, a 1.7B policy for each path of the trainer. The rows of all paths have equal
    lengths."""
    wanted = [name for name, path in PATHS.items() if proof.unless(path.missing, f"path {name}")]
    policies = {name: PATHS[name].policy(_real(proof, "1.7b")) for name in wanted}
    agents = {f"path_{number}": {"policy": name} for number, name in enumerate(wanted)}
    repeats = 2 if proof.cpu else 60
    team = [
        *("+mas=team", "algorithm.adv_estimator=agent_grpo", "mas.workflow.name=Alike"),
        *(
            f"mas.workflow.path={HERE / 'paths_team.py'}",
            f"mas.workflow.args={{count:{len(wanted)},repeats:{repeats}}}",
        ),
    ]
    overrides = [f"mas.policies={hydra(policies)}", f"mas.agents={hydra(agents)}", *for_steps(STEPS)]
    (run,) = train(proof, "paths", {"": [*_real_run(proof, _fastest_engine(), 0.15), *overrides]}, team=team)
    learns(proof, run, steps=STEPS, correlation=0.95)
    parts = ("timing/old_log_prob", "timing/update")
    seconds = {
        name: {part: [step.get(f"policy/{name}/{part}") for step in run.steps.values()] for part in parts}
        for name in wanted
    }
    shared = [step.get("policy/trees/rows/shared_tokens", 0.0) for step in run.steps.values()]
    proof.write("paths", seconds=seconds, shared_tokens=shared)
    proof.check("prefixes were shared", bool(shared) and min(shared) > 0.1, shared)
    timed = all(each is not None for name in wanted for each in seconds[name]["timing/update"])
    proof.check("the update of every path was timed", bool(run.steps) and timed, [*seconds])


def stock(proof: Proof) -> None:
    """Stage 4: compare a team of one agent with verl without a team. The two runs make their steps in turn."""
    shared = proof.folder / "turns"
    shared.mkdir(exist_ok=True)
    engine = _fastest_engine()
    overrides = [*_real_run(proof, engine, 0.25), *for_steps(STOCK_STEPS)]
    if engine == "vllm":
        # Set the size of the KV cache. Otherwise vLLM would measure the free memory of the GPU while the other run
        # allocates and frees memory, and might refuse to start.
        cache = (1 if proof.cpu else 8) << 30
        overrides.append(f"++actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={cache}")
    teams = {"single": ("+mas=single", TEAM[1]), "stock": ("algorithm.adv_estimator=grpo",)}
    env = {turns.FOLDER: str(shared)}
    programs = [
        p for name, team in teams.items() for p in training.commands(proof, name, {"": overrides}, team=team, env=env)
    ]
    began = [ended.began for ended in proof.run(*programs, all_at_once=True)]
    medians = {}
    for name, at in zip(teams, began, strict=True):
        run = Run(proof.folder / name, training.steps_of(proof.folder / name))
        training.record(proof, run, at)
        learns(proof, run, steps=STOCK_STEPS, correlation=0.95)
        medians[name] = _without_rollout(run)
    ratio = medians["single"] / medians["stock"] if all(medians.values()) else None
    proof.write("beside stock", seconds_without_rollout=medians, ratio=ratio)
    what = f"a step without rollout takes at most {MOST_OF_STOCK} of verl's"
    if proof.unless(NEEDS_CUDA if proof.cpu else None, what):
        proof.check(what, ratio is not None and ratio <= MOST_OF_STOCK, ratio)


def _without_rollout(run: Run) -> float:
    """Return the median seconds of the steps after the first one, without sampling and without the wait for the run's
    turn. Return 0 if there are no such steps."""
    seconds = [
        step["timing_s/step"] - step["timing_s/gen"] - step.get(f"timing_s/{turns.TURN}", 0.0)
        for number, step in run.steps.items()
        if number > 1
    ]
    return median(seconds or [0.0])


def hydra(value: Nested | str | bool) -> str:
    """Write a value for Hydra's command line."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra(each)}' for key, each in value.items())}}}"
    return str(value)


def _fastest_engine() -> str:
    return next(name for name in ENGINES if name == "transformers" or find_spec(name))


def _real(proof: Proof, name: str) -> str:
    return f"{proof.folder}/models/{name}"


def _engine(name: str, share: float) -> list[str]:
    """Return the settings of an engine. `enforce_eager` is set, because vLLM and SGLang would take longer to capture
    CUDA graphs than these runs take to sample."""
    settings = [
        f"actor_rollout_ref.rollout.gpu_memory_utilization={share}",
        "actor_rollout_ref.rollout.enforce_eager=true",
    ]
    return [f"actor_rollout_ref.rollout.name={name}", *([] if name == "transformers" else settings)]


def _real_run(proof: Proof, engine: str, share: float) -> list[str]:
    """Return the overrides of a run at real width. On a GPU, prompts grow to 2,300 tokens in three acts: a reply of 256
    tokens has 1,024 bytes, and each byte is a token of a later prompt."""
    tasks, sessions, reply, prompt = (2, 4, 32, 512) if proof.cpu else (8, 8, 256, 3072)
    micro = 1024 if proof.cpu else 8192
    return [
        *(*_engine(engine, share), f"actor_rollout_ref.model.path={_real(proof, '1.7b')}"),
        *(f"data.train_batch_size={tasks}", f"actor_rollout_ref.actor.ppo_mini_batch_size={tasks}"),
        *(f"actor_rollout_ref.rollout.n={sessions}", f"data.max_response_length={reply}"),
        *(f"data.max_prompt_length={prompt}", f"actor_rollout_ref.rollout.max_model_len={prompt + reply}"),
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={max(micro, prompt + reply)}",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={max(micro, prompt + reply)}",
        *("actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.model.enable_gradient_checkpointing=true"),
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
    ]
