"""Compare CPU time, memory and start of verl-mas with TRL and CoMLRL: SmolLM2-135M, all weights, float32, no GPU.

    verl-mas data smollm2 --out runs/smollm2
    python -m benchmarks.other_trainers --model runs/smollm2/model --trl ENV/bin/python --comlrl ENV/bin/python

Each trainer has its own environment (versions/other_trainers). One agent is compared with TRL's GRPO, and two agents,
each with its own policy, with CoMLRL's MAGRPO. Only one run is active at a time, and each trainer runs twice, in the
order A B B A. Memory is the peak of the proportional set size (PSS) of all processes of a run. The start is the time
from the command to the end of the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from pyarrow import Table, parquet

from benchmarks.other_trainers import workload

HERE = Path(__file__).parent
POLL_S = 1.0
WARM_UP = 1  # number of first steps that the CPU time excludes
LIMIT_S = 1800


@dataclass
class Processes:
    """The resources that a command and its child processes have used."""

    root: psutil.Process
    cpu: dict[int, float] = field(default_factory=dict)  # seconds by process id, also of ended processes
    peak_gb: float = 0.0

    def sample(self) -> float:
        """Update the resources from the running processes. Return the CPU seconds used so far."""
        held = 0
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                held += _pss(process.pid)
            except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                continue
            self.cpu[process.pid] = times.user + times.system
        self.peak_gb = max(self.peak_gb, held / 1e9)
        return sum(self.cpu.values())


@dataclass(frozen=True)
class Run:
    cpu_per_1000_tokens: float
    peak_gb: float
    first_step_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trl", help="the Python of an environment with TRL")
    parser.add_argument("--comlrl", help="the Python of an environment with CoMLRL")
    given = parser.parse_args()
    model = str(given.model.absolute())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_tasks(folder / "tasks.parquet")
        if given.trl:
            other = [given.trl, str(HERE / "trl_grpo.py"), model]
            compare("TRL, one agent", _verl_mas(model, folder, ["+mas=single"]), other, folder)
        if given.comlrl:
            team = [
                *("+mas=team", "mas.workflow.name=Alike", "mas.policies={a:{},b:{}}"),
                f"mas.workflow.path={HERE.parents[1] / 'scripts/proof/paths_team.py'}",
                "mas.agents={path_0:{policy:a},path_1:{policy:b}}",
            ]
            other = [given.comlrl, str(HERE / "comlrl_magrpo.py"), model]
            compare("CoMLRL, two agents", _verl_mas(model, folder, team), other, folder)


def compare(what: str, ours: list[str], theirs: list[str], folder: Path) -> None:
    runs: dict[str, list[Run]] = {"verl-mas": [], what: []}
    for arm in ("verl-mas", what, what, "verl-mas"):
        done = measure(ours if arm == "verl-mas" else theirs, Path(tempfile.mkdtemp(dir=folder)))
        print(f"{arm}: {done}", flush=True)
        runs[arm].append(done)
    for figure in ("cpu_per_1000_tokens", "peak_gb", "first_step_s"):
        mine, other = (median(getattr(run, figure) for run in runs[arm]) for arm in runs)
        print(f"{figure}: verl-mas {mine:.1f}, {what} {other:.1f}; ratio {mine / other:.2f}", flush=True)


def measure(command: Sequence[str], folder: Path) -> Run:
    """Run a training command, which writes a line to a file after each step, and measure it."""
    log, began = folder / "steps.jsonl", time.time()
    ours = "verl.trainer.main_ppo" in command
    full = [*command, f"trainer.default_local_dir={folder}/run"] if ours else [*command, str(log)]
    environment = {
        **os.environ,
        "VERL_FILE_LOGGER_PATH": str(log),
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(HERE),
    }
    with (folder / "output").open("w") as out:
        processes = Processes(psutil.Popen(full, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment))
        steps = list(_steps(processes, log, began))
    if len(steps) < workload.STEPS:
        raise SystemExit(
            f"{full[:3]} made {len(steps)} of {workload.STEPS} steps: {(folder / 'output').read_text()[-3000:]}"
        )
    (_, warm, _), (_, end, _) = steps[WARM_UP - 1], steps[-1]
    sampled = sum(tokens for *_, tokens in steps[WARM_UP:])
    return Run(1000 * (end - warm) / sampled, processes.peak_gb, steps[0][0])


def _steps(processes: Processes, log: Path, began: float) -> Iterator[tuple[float, float, int]]:
    """Yield for each step the seconds since the command, the CPU seconds so far, and the sampled tokens."""
    seen = 0
    while time.time() - began < LIMIT_S:
        running = processes.root.poll() is None
        cpu = processes.sample() if running else sum(processes.cpu.values())
        lines = log.read_text().splitlines() if log.exists() else []
        for line in lines[seen:]:
            yield time.time() - began, cpu, _sampled(json.loads(line))
        seen = len(lines)
        if not running:
            return
        time.sleep(POLL_S)
    processes.root.terminate()


def _sampled(step: dict[str, object]) -> int:
    """Return the number of sampled tokens of a step. Lines that verl writes have their metrics in `data`."""
    return int(step["tokens"] if "tokens" in step else step["data"]["session/generated_tokens"])


def _pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _verl_mas(model: str, folder: Path, team: list[str]) -> list[str]:
    tasks = folder / "tasks.parquet"
    return [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu", *team),
        *("algorithm.adv_estimator=agent_grpo", f"data.train_files={tasks}", f"data.val_files={tasks}"),
        *(f"data.train_batch_size={workload.PROMPTS}", "data.max_prompt_length=64"),
        f"data.max_response_length={workload.REPLY}",
        *("algorithm.rollout_correction.bypass_mode=true", "mas.updates_per_step=1"),
        *(f"actor_rollout_ref.model.path={model}", f"actor_rollout_ref.actor.ppo_mini_batch_size={workload.PROMPTS}"),
        *("actor_rollout_ref.actor.use_kl_loss=false", f"actor_rollout_ref.actor.optim.lr={workload.LEARNING_RATE}"),
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        *(f"actor_rollout_ref.rollout.n={workload.SESSIONS}", "actor_rollout_ref.rollout.temperature=1.0"),
        "+actor_rollout_ref.rollout.engine_kwargs.transformers.threads=2",
        "ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS='2'",
        f"reward.custom_reward_function.path={HERE / 'workload.py'}",
        *(f"trainer.total_training_steps={workload.STEPS}", "trainer.total_epochs=100"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        "trainer.logger=[console,file]",
    ]


def _write_tasks(file: Path) -> None:
    tasks = [
        {
            "data_source": "stories",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, question in enumerate(workload.questions())
    ]
    parquet.write_table(Table.from_pylist(tasks), file)


if __name__ == "__main__":
    main()
