"""Runs a piece of the matrix by `python -m verl.trainer.main_ppo`, and stores its metrics as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.evidence.matrix import (
    ARMS,
    PER_ROLE,
    ROOT,
    SETTINGS,
    SIZE,
    START,
    STEPS,
    TEAM,
    Arm,
    Evaluation,
    Piece,
    Training,
)
from verl_mas.demos.metrics import Step, read_steps, series

RESULTS = Path(__file__).with_name("results")
RUNS = ROOT / "runs" / "evidence"
SUCCESS = "val-core/plan_path/acc/mean@1"
# Metrics to store per step; the keys contain the names of agents and policies.
KEPT = ("actor/grad_norm", "rows/real", "group/inflation", "reward/score")


def result_of(piece: Piece) -> Path:
    return RESULTS / f"{piece.key}.json"


def checkpoint_of(piece: Piece) -> Path:
    return RUNS / piece.key / "checkpoints" / f"global_step_{STEPS}"


def finished(piece: Piece) -> bool:
    file = result_of(piece)
    if not file.exists():
        return False
    if json.loads(file.read_text())["settings"] != settings_of(piece.arm):
        raise ValueError(f"{file} has other settings than the matrix: delete it to repeat the run")
    return True


def settings_of(arm: Arm) -> list[str]:
    """The settings that determine an arm's results, besides the seed; without the path of this checkout."""
    if isinstance(arm, Evaluation):
        played = (f"{role}={source}/{policy}" for role, (source, policy) in arm.roles.items())
        return [*SETTINGS, *played, *(setting for name in arm.needs for setting in (name, *settings_of(ARMS[name])))]
    settings = (arm.workflow, f"size={arm.size}", *START, *SETTINGS, *arm.overrides)
    return [setting.replace(f"{ROOT}/", "") for setting in settings]


def usable(piece: Piece) -> bool:
    """Whether pieces that need this one can run. A result from the repository has no checkpoint."""
    return finished(piece) and checkpoint_of(piece).exists()


@dataclass
class Runner:
    """`through` is a prefix of every command, such as `nice -n 10`."""

    through: Sequence[str] = ()
    _starts: defaultdict[Path, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def run(self, piece: Piece) -> None:
        arm = piece.arm
        found = self._evaluate(piece, arm) if isinstance(arm, Evaluation) else self._train(piece, arm)
        result = {"arm": arm.name, "seed": piece.seed, "settings": settings_of(arm), **found}
        RESULTS.mkdir(exist_ok=True)
        result_of(piece).write_text(json.dumps(result) + "\n")

    def _train(self, piece: Piece, arm: Training) -> dict[str, Any]:
        _forget(piece)
        start = self._start(arm.workflow, piece.seed, arm.size)
        steps, seconds = self._main_ppo(
            piece,
            (
                f"+mas={arm.workflow}",
                *SETTINGS,
                *files(start),
                f"actor_rollout_ref.model.path={start}/model",
                f"data.seed={piece.seed}",
                f"trainer.save_freq={STEPS if arm.keeps else -1}",
                *arm.overrides,
            ),
        )
        return {"seconds": seconds, **numbers(steps)}

    def _evaluate(self, piece: Piece, arm: Evaluation) -> dict[str, Any]:
        models = {
            role: self._exported(next(need for need in piece.needs if need.arm.name == name), policy)
            for role, (name, policy) in arm.roles.items()
        }
        start = self._start(TEAM, piece.seed)
        steps, seconds = self._main_ppo(piece, (f"+mas={TEAM}", *SETTINGS, *files(start), *weights(models, start)))
        return {"seconds": seconds, "success": success(steps)}

    def _main_ppo(self, piece: Piece, overrides: Sequence[str]) -> tuple[list[Step], int]:
        """The logged steps of the run, and its duration in seconds."""
        folder = RUNS / piece.key
        folder.mkdir(parents=True, exist_ok=True)
        metrics = folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu"),
            *overrides,
            f"trainer.default_local_dir={folder}/checkpoints",
            "trainer.resume_mode=disable",
        ]
        began = time.time()
        self._call(command, folder / "log.txt", VERL_FILE_LOGGER_PATH=str(metrics))
        return read_steps(metrics), round(time.time() - began)

    def _start(self, workflow: str, seed: int, size: int = SIZE) -> Path:
        """Boards and the warmed-up model, the same for all arms of a seed, workflow and size."""
        folder = RUNS / f"start-{workflow}-{size}-{seed}"
        done = folder / "done"
        with self._starts[folder]:
            options = ("--workflow", workflow, "--seed", str(seed), "--size", f"size={size}", *START)
            if not done.exists() or done.read_text() != " ".join(options):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                main = "import sys; from verl_mas.cli import main; sys.exit(main())"
                command = [sys.executable, "-c", main, "puzzle", "plan_path", "--out", str(folder), *options]
                self._call(command, folder / "log.txt")
                done.write_text(" ".join(options))
        return folder

    def _exported(self, trained: Piece, policy: str) -> Path:
        target = RUNS / trained.key / f"{policy}-hf"
        with self._starts[target]:
            if not (target / "config.json").exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source = ("--backend", "fsdp", "--local_dir", str(checkpoint_of(trained) / policy))
                command = [sys.executable, "-m", "verl.model_merger", "merge", *source, "--target_dir", str(target)]
                self._call(command, RUNS / trained.key / "merge.txt")
        return target

    def _call(self, command: Sequence[str], log: Path, **environment: str) -> None:
        with log.open("w") as output:
            subprocess.run(
                [*self.through, *command],
                check=True,
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def _forget(piece: Piece) -> None:
    """Delete the results of an earlier run of this piece: its weights, and their evaluations."""
    shutil.rmtree(RUNS / piece.key, ignore_errors=True)
    for arm in ARMS.values():
        if piece.arm.name in arm.needs:
            result_of(Piece(arm, piece.seed)).unlink(missing_ok=True)


def files(start: Path) -> tuple[str, str]:
    return f"data.train_files={start}/train.parquet", f"data.val_files={start}/test.parquet"


def weights(models: Mapping[str, Path], start: Path) -> tuple[str, ...]:
    """The overrides of a validation in which each role has the weights in a folder."""
    paths = ", ".join(f"{role}: {{overrides: {{model: {{path: {path}}}}}}}" for role, path in models.items())
    return (
        f"actor_rollout_ref.model.path={start}/model",
        f"mas.policies={{{paths}}}",
        *PER_ROLE[1:],
        "trainer.val_only=true",
    )


def success(steps: Sequence[Step]) -> dict[str, float]:
    """The share of held-out boards solved, by step."""
    places, values = series(list(steps), SUCCESS)
    return dict(zip(map(str, places), values, strict=True))


def numbers(steps: Sequence[Step]) -> dict[str, Any]:
    """Success by step, and the stored metrics: one value per step, null if the step did not log it."""
    trained = [step for step in steps if step.number > 0]
    if [step.number for step in trained] != [*range(1, STEPS + 1)]:
        raise ValueError(f"a run of {STEPS} steps logged {[step.number for step in trained]}")
    keys = sorted({key for step in trained for key in step.values if key.endswith(KEPT) and not key.startswith("val-")})
    kept = {key: [_rounded(step.values.get(key)) for step in trained] for key in keys}
    return {"success": success(steps), "series": kept}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
