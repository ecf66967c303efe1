"""Kill each kind of process of a run at each moment of a step, and check how the run ends and how it resumes.

    python benchmarks/kill_matrix.py FOLDER [--kinds engine,driver] [--moments rollout,save] [--repeats 3]
    python benchmarks/kill_matrix.py FOLDER --mode colocate_async --moments step --repeats 5
    python benchmarks/kill_matrix.py FOLDER --mode colocate_async --one-run --repeats 1 [--adapters] [--team program]
    python benchmarks/kill_matrix.py FOLDER --one-run --spread --repeats 1

Set PYTHONPATH=tests/support. Each kind has its own run and folder, or with --one-run all kinds have the same run. Every
start of a run resumes after the last kill and ends with the next kill. The last start is not killed, and its final
checkpoint is compared bit for bit with the final checkpoint of a run without kills. In an asynchronous mode, timing
decides which weights sample a token, so the check there is that every dispatched task was trained on exactly once.
Results are lines of JSON in FOLDER/results.jsonl; if the command is repeated, it only adds the missing results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from kill_teams import TEAMS, write_rows
from warm_python import WarmPython

from verl_mas.run_folder.session_files import files_of, read_lines
from verl_mas.verl_.row import RowKey

TESTS = Path(__file__).parents[1] / "tests"
# Kind -> pattern for the start of the process's title or command, and pattern that the run's last lines must match.
KINDS = {
    "agent-loop": (r"ray::\w*AgentLoopWorker", r"lost: agent-loop worker \d+ \(pid {pid} on"),
    "storage": (r"ray::SimpleStorageUnit", r"lost: TransferQueue storage unit \d+ \(pid {pid} on"),
    "controller": (r"ray::TransferQueueController", r"lost: TransferQueue controller \(pid {pid} on"),
    "engine": (r"ray::\w*Transformers\w*Server", r"lost: engine \d+ of policy (solver|base) \(pid {pid} on"),
    "training": (r"ray::WorkerDict", r"lost: training worker \d+ of policy (solver|base) \(pid {pid} on"),
    "reward": (r"ray::RewardLoopWorker", r"lost: reward worker \d+ \(pid {pid} on"),
    # Weight receivers exist only if engines have their own GPUs.
    "receiver": (r"ray::CheckpointEngineWorker", r"lost: weight receiver \d+ of policy solver \(pid {pid} on"),
    "runner": (r"ray::TaskRunner", r"lost: task runner \(pid {pid} on"),
    "raylet": (r"\S*/raylet ", r"lost: Ray's raylet .*\(pid {pid}\)"),
    "gcs": (r"\S*/gcs_server ", r"lost: Ray's GCS \(pid {pid}\)"),
    # If the user ends a run, no process is lost, so `lost: ` must not occur. Without colon, `lost` is also a metric.
    "driver": ("", r"(?s)\A(?!.*lost: )"),
    "interrupt": ("", r"(?s)\A(?!.*lost: ).*verl-mas: interrupted; saved: "),
    "terminate": ("", r"(?s)\A(?!.*lost: )"),
}
TO_THE_DRIVER = {"driver": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
# Part of a step -> its approximate seconds. The kill comes at a random time in it. `step` lasts into the next step.
MOMENTS = {"rollout": 0.25, "update": 0.25, "save": 0.025, "step": 1.5}
MODES = {
    "sync": ("actor_rollout_ref.rollout.full_determinism=true",),
    "colocate_async": ("+mas/mode=colocate_async",),
    "separate_async": (
        "+mas/mode=separate_async",
        "++mas.pools.engines={n_gpus_per_node:1}",
        "++mas.policies.solver.engines=engines",
        "++ray_kwargs.ray_init.num_gpus=2",
    ),
}
# These settings make the policy `solver` an adapter on a base that is not trained.
ADAPTERS = (
    "++mas.policies.solver.adapter_of=base",
    "++mas.policies.base={trainable:false}",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=16",
)
TASKS = 4  # per step
SAVE_EVERY, STEPS = 2, 24
ONE_RUN = "all"
# A start trains for about two steps before it is killed.
STEPS_PER_KILL, LAST_STEPS = 3, 8
LONGEST_START, LONGEST_END, LIMIT, LEFT_AFTER = 240.0, 90.0, 30.0, 8.0


@dataclass(frozen=True)
class Killed:
    """A kill and its result."""

    kind: str
    moment: str
    repeat: int
    first_step: int
    """First step of this start. It must be the step after the latest checkpoint at the last kill."""
    resumed_right: bool
    step: int
    delay: float
    seconds: float | None
    """Seconds from the kill until the run ended; None if it did not end."""
    exit_code: int | None
    named: bool
    saved_and_resume_said: bool
    left: list[str]
    pointer: int
    last_lines: str


class Run:
    """One start of a run, with its own Ray cluster."""

    def __init__(self, python: str, folder: Path, team: str, steps: int = STEPS, settings: Sequence[str] = ()):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.moments = folder / "moments.txt"
        self.moments.write_text("")
        # The paths of Ray's sockets must be shorter than about a hundred characters.
        self.temporary = tempfile.mkdtemp(prefix="kill-")
        self.log = folder / "log.txt"
        environment = os.environ | {
            "MOMENTS": str(self.moments),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), os.environ.get("PYTHONPATH", "")]),
            "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
            "VERL_USE_EXTERNAL_MODULES": "moments",
        }
        command = [python, "-m", "verl.trainer.main_ppo", *overrides(folder, folder.parent, steps, team), *settings]
        command += [f"+ray_kwargs.ray_init._temp_dir={self.temporary}"]
        with self.log.open("w") as out:
            self.driver = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)

    def reached(self) -> list[tuple[str, int]]:
        found = [line.split() for line in self.moments.read_text().splitlines()]
        return [(moment, int(step)) for moment, step in found]

    def wait_for(self, moment: str, step: int) -> None:
        until = time.monotonic() + LONGEST_START
        while (moment, step) not in self.reached():
            assert self.driver.poll() is None, f"it ended before {moment} {step}: {self.last_lines(40)}"
            assert time.monotonic() < until, f"{moment} {step} was not reached: {self.last_lines(40)}"
            time.sleep(0.002)

    def first_step(self) -> int:
        until = time.monotonic() + LONGEST_START
        while not self.reached():
            assert self.driver.poll() is None, f"it ended before its first step: {self.last_lines(40)}"
            assert time.monotonic() < until, f"no first step: {self.last_lines(40)}"
            time.sleep(0.1)
        return self.reached()[0][1]

    def processes(self) -> dict[int, str]:
        """Return process id -> title. Only processes of this run use this run's Ray folder."""
        found = {pid: title for pid, title in titles() if self._has_open(pid)}
        return found | ({self.driver.pid: "driver"} if self.driver.poll() is None else {})

    def _has_open(self, pid: int) -> bool:
        for descriptor in ("1", "2"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(self.temporary):
                    return True
        with suppress(OSError):
            return self.temporary in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return False

    def one_of(self, kind: str) -> int:
        if kind in TO_THE_DRIVER:
            return self.driver.pid
        return next(pid for pid, title in sorted(self.processes().items()) if re.match(KINDS[kind][0], title))

    def last_lines(self, count: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def pointer(self) -> int:
        file = self.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
        return int(file.read_text()) if file.exists() else 0

    def end(self) -> None:
        """Kill all processes that are left of the run, and delete its Ray folder."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.driver.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)


def titles() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                title = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(path.name), title


def overrides(folder: Path, common: Path, steps: int, team: str) -> Iterator[str]:
    """Yield the overrides of a run. `common`: the folder with the rows and the model."""
    yield from ("+platform=cpu", "+recipe=first_run/laptop", "mas.policies={solver:{}}")
    yield from (setting.replace("{folder}", str(common)) for setting in TEAMS[team])
    yield f"actor_rollout_ref.model.path={common}/letters/model"
    yield f"trainer.default_local_dir={folder}/checkpoints"
    yield f"hydra.run.dir={folder}/hydra"
    yield f"trainer.total_training_steps={steps}"
    yield f"trainer.save_freq={SAVE_EVERY}"
    yield from (
        "algorithm.adv_estimator=agent_grpo",
        f"data.train_batch_size={TASKS}",
        "data.max_prompt_length=128",
        "data.val_max_samples=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.max_actor_ckpt_to_keep=2",
    )


def kill(run: Run, kind: str, moment: str, repeat: int, before: int, chance: random.Random) -> Killed:
    first = run.first_step()
    # Kill a rollout or an update only after a save, so that the next start resumes from a checkpoint of this start.
    step = first + 1 if moment == "save" else first + 2
    pid = run.one_of(kind)
    delay = chance.uniform(0, MOMENTS[moment])
    run.wait_for("rollout" if moment == "step" else moment, step)
    time.sleep(delay)
    os.kill(pid, TO_THE_DRIVER.get(kind, signal.SIGKILL))
    start = time.monotonic()
    try:
        exit_code, seconds = run.driver.wait(LONGEST_END), time.monotonic() - start
    except subprocess.TimeoutExpired:
        exit_code, seconds = None, None
    time.sleep(LEFT_AFTER)
    left = sorted(run.processes().values())
    said = run.last_lines(12)
    pointer = run.pointer()
    return Killed(
        kind=kind,
        moment=moment,
        repeat=repeat,
        first_step=first,
        resumed_right=first == before + 1,
        step=step,
        delay=round(delay, 3),
        seconds=seconds and round(seconds, 1),
        exit_code=exit_code,
        named=re.search(KINDS[kind][1].format(pid=pid), said) is not None,
        saved_and_resume_said=kind in ("driver", "terminate")
        or re.search(rf"step {pointer}(, in {run.folder}| had not ended)(?s:.*)resume: ", said) is not None,
        left=left,
        pointer=pointer,
        last_lines=said,
    )


def finish(run: Run, steps: int = STEPS) -> int:
    """Let a start train to the last step without a kill. Return its first step."""
    try:
        first = run.first_step()
        assert run.driver.wait(LONGEST_START) == 0, run.last_lines(40)
        assert run.pointer() == steps, run.pointer()
    finally:
        run.end()
    return first


def different(left: object, right: object) -> bool:
    """Return whether the states of two checkpoints differ in any bit."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return not torch.equal(getattr(left, "_local_tensor", left), getattr(right, "_local_tensor", right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() != right.keys() or any(different(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) != len(right) or any(map(different, left, right))
    return type(left) is not type(right) or (isinstance(left, int | float | str | bytes) and left != right)


def same_end(one: Path, other: Path, steps: int = STEPS) -> list[str]:
    """Return the files of the trained policy that differ between the final checkpoints."""
    last = Path("checkpoints", f"global_step_{steps}", "solver")
    files = {
        file.relative_to(folder) for folder in (one, other) for file in (folder / last).rglob("*") if file.is_file()
    }
    assert any(file.suffix in (".pt", ".safetensors") for file in files), f"no weights in {one / last}"
    return sorted(str(file) for file in files if different(*(content(run / file) for run in (one, other))))


def content(file: Path) -> object:
    if file.suffix == ".pt" and file.exists():
        return torch.load(file, weights_only=False)
    return file.read_bytes() if file.exists() else None


def attempts(folder: Path) -> list[dict[int, list[str]]]:
    """Return for each start that trained, in order, the tasks that it trained on, by the step of their dispatch."""
    found: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in files_of(folder / "checkpoints" / "trajectories" / "train"):
        for line in read_lines(file.path) if file.of_advantages else ():
            found[file.attempt][file.step] += {RowKey.parse(key).uid for key in json.loads(line)}
    return [found[attempt] for attempt in sorted(found)]


def untrained(folder: Path, steps: int = STEPS) -> list[str]:
    """Return the tasks that were dispatched for the steps of a run and never trained on."""
    trained = {uid for attempt in attempts(folder) for uids in attempt.values() for uid in uids}
    # The batch of a step was dispatched one step earlier, and the first step's batch in the warm-up.
    return sorted({f"{step}-{number}" for step in range(steps) for number in range(TASKS)} - trained)


def trained_twice(folder: Path, first_steps: Sequence[int]) -> list[str]:
    """Return the tasks on which the final weights were trained more than once.

    `first_steps` has the first step of each start.
    """
    found = attempts(folder)
    assert len(found) == len(first_steps), f"{len(found)} starts have trained, of {len(first_steps)}"
    twice: list[str] = []
    for first, attempt in zip(first_steps, found, strict=True):
        for step, uids in attempt.items():
            # A start repeats the steps from `first` on. Their batches were dispatched from step `first - 1` on.
            again = set(uids) if step < first - 1 else {uid for uid in uids if uids.count(uid) > 1}
            twice += sorted(again)
    return twice


class Results:
    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, **row: object) -> None:
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key != "last_lines"}), flush=True)

    def has(self, **wanted: object) -> bool:
        return any(wanted.items() <= row.items() for row in self.rows)


@dataclass(frozen=True)
class Matrix:
    """The kills that the command's arguments ask for."""

    python: str
    folder: Path
    mode: str
    team: str
    settings: Sequence[str]
    moments: Sequence[str]
    repeats: int
    spread: bool
    results: Results

    def kills(self, kinds: Sequence[str]) -> list[tuple[int, str, str]]:
        """Return the repeat, moment and kind of each kill.

        With `spread`, each kind is killed at only one moment per repeat, and the moments rotate.
        """
        if not self.spread:
            return list(product(range(self.repeats), self.moments, kinds))
        count = len(self.moments)
        return [(n, self.moments[(n + at) % count], kind) for n in range(self.repeats) for at, kind in enumerate(kinds)]

    def chain(self, name: str, kinds: Sequence[str], steps: int) -> None:
        """Make all kills of these kinds in one run, one after the other, then let the run finish."""
        own = self.folder / name
        for repeat, moment, kind in self.kills(kinds):
            if self.results.has(kind=kind, moment=moment, repeat=repeat):
                continue
            run = self._start(own, steps)
            try:
                chance = random.Random(f"{kind}/{moment}/{repeat}")
                self.results.add(run=name, **asdict(kill(run, kind, moment, repeat, run.pointer(), chance)))
            finally:
                run.end()
        if self.results.has(kind=name, end=True):
            return
        run = self._start(own, steps)
        before = run.pointer()
        first = finish(run, steps)
        if self.mode == "sync":
            differs = same_end(own, self.folder / "unbroken", steps)
        else:
            firsts = [row["first_step"] for row in self.results.rows if row.get("run") == name]
            differs = untrained(own, steps) + trained_twice(own, [*firsts, first])
        self.results.add(kind=name, end=True, resumed_right=first == before + 1, differs=differs)

    def _start(self, own: Path, steps: int) -> Run:
        return Run(self.python, own, self.team, steps, self.settings)


def is_wrong(row: dict[str, Any]) -> bool:
    if row["kind"] == "none":
        return False
    if row.get("end"):
        return bool(row["differs"]) or not row["resumed_right"]
    ended = row["seconds"] is not None and row["seconds"] <= LIMIT
    failed = row["exit_code"] == 1 or (row["kind"] in TO_THE_DRIVER and row["exit_code"] != 0)
    said = row["named"] and row["saved_and_resume_said"]
    return not (ended and failed and said and row["resumed_right"]) or bool(row["left"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Add the missing results, and return the number of wrong results in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).absolute())
    parser.add_argument("--kinds", help="all that the mode has, if it is not given")
    parser.add_argument("--one-run", action="store_true", help="not one for each kind")
    parser.add_argument("--spread", action="store_true", help="each kind at one moment per repeat, not at all")
    parser.add_argument("--moments", default="rollout,update,save")
    parser.add_argument("--mode", choices=list(MODES), default="sync", help="each mode needs a folder of its own")
    parser.add_argument("--adapters", action="store_true", help="train an adapter; in a folder of its own, too")
    parser.add_argument("--team", choices=list(TEAMS), default="pair", help="each in a folder of its own")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(arguments)
    present = [kind for kind in KINDS if kind != "receiver" or args.mode == "separate_async"]
    kinds = args.kinds.split(",") if args.kinds else present
    # A shell starts background commands with SIGINT ignored, and the runs would inherit this. So restore the default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = [*MODES[args.mode], *(ADAPTERS if args.adapters else ())]
    args.folder.mkdir(parents=True, exist_ok=True)
    results = Results(args.folder / "results.jsonl")
    if not (args.folder / "letters").exists():
        subprocess.run([sys.executable, "-m", "verl_mas.testing.letters", str(args.folder / "letters")], check=True)
    write_rows(args.folder / "world.parquet")
    with WarmPython() as warm:
        moments, python = args.moments.split(","), str(warm.executable)
        matrix = Matrix(
            python, args.folder, args.mode, args.team, settings, moments, args.repeats, args.spread, results
        )
        steps = len(matrix.kills(kinds)) * STEPS_PER_KILL + LAST_STEPS if args.one_run else STEPS
        if args.mode == "sync" and not results.has(kind="none", end=True):
            finish(Run(python, args.folder / "unbroken", args.team, steps, settings), steps)
            results.add(kind="none", end=True)
        if args.one_run:
            matrix.chain(ONE_RUN, kinds, steps)
        else:
            for kind in kinds:
                matrix.chain(kind, [kind], steps)
    wrong = [row for row in results.rows if is_wrong(row)]
    print(f"{len(results.rows)} results, {len(wrong)} wrong", *wrong, sep="\n")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(1, main()))
