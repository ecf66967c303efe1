"""Run an arm of the matrix with a seed by `python -m verl.trainer.main_ppo`, and store its metrics as JSON."""

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

from benchmarks.evidence.arms import ROOT, Arm, Evaluation, Piece, Start, Training, Trial
from benchmarks.evidence.matrix import ARMS, needs
from benchmarks.evidence.places import Places
from verl_mas.run_folder.metrics.file import Step, read_steps, series

RESULTS = Path(__file__).with_name("results")
RUNS = ROOT / "runs" / "evidence"
# Endings of the metrics to store per step. The full keys begin with the names of agents and policies.
KEPT = (
    "actor/grad_norm",
    "rows/real",
    "group/inflation",
    "group/signal_share",
    "group/sigma",
    "reward/score",
    "agreement/mean",
    "session/generated_tokens",
    "session/acc/mean",
    "session/whole/mean",
    "session/length/mean",
    "session/probe_tokens",
    "session/critical_path/mean",
)
# Environment variables that all commands get.
OWN = {"OMP_NUM_THREADS": "1"}
# The modules that register the data sets of the evidence.
DATA_SETS = tuple(f"benchmarks.evidence.{name}" for name in ("list_data", "offers", "peer_starts", "world_starts"))


def result_of(piece: Piece) -> Path:
    return RESULTS / f"{piece.key}.json"


def checkpoint_of(piece: Piece) -> Path:
    return RUNS / piece.key / "checkpoints" / f"global_step_{piece.arm.trial.steps}"


def finished(piece: Piece) -> bool:
    file = result_of(piece)
    if not file.exists():
        return False
    if json.loads(file.read_text())["settings"] != settings_of(piece.arm):
        raise ValueError(f"{file} has other settings than the matrix: delete it to repeat the run")
    return True


def settings_of(arm: Arm) -> list[str]:
    """Return the settings that determine an arm's results together with the seed. They do not contain the path of this
    checkout."""
    common = (*arm.start.command, f"+mas={arm.workflow}", *arm.trial.settings)
    if isinstance(arm, Training):
        return [setting.replace(f"{ROOT}/", "") for setting in (*common, *arm.overrides)]
    played = [
        f"{role}={one.arm}/{one.policy}{' of the next seed' if one.later else ''}" for role, one in arm.roles.items()
    ]
    return [*common, *played, *(setting for name in arm.needs for setting in (name, *settings_of(ARMS[name])))]


def usable(piece: Piece) -> bool:
    """Return whether the pieces that need this piece can run. They need its checkpoint, which a result from the
    repository does not have."""
    return finished(piece) and checkpoint_of(piece).exists()


@dataclass
class Runner:
    """Runs pieces and stores their results. `through` is a prefix of every command, such as `nice -n 10`."""

    through: Sequence[str] = ()
    places: Places = field(default_factory=Places)
    _locks: defaultdict[Path, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def run(self, piece: Piece) -> None:
        if isinstance(piece.arm, Training) and not piece.arm.within:
            _forget(piece)
        result = self.measured(piece)
        RESULTS.mkdir(exist_ok=True)
        result_of(piece).write_text(json.dumps(result) + "\n")

    def measured(self, piece: Piece) -> dict[str, Any]:
        arm = piece.arm
        if isinstance(arm, Evaluation):
            found = self._evaluate(piece, arm)
        else:
            found = self._train_within(piece, arm, arm.within) if arm.within else self._train(piece, arm)
        return {"arm": arm.name, "seed": piece.seed, "settings": settings_of(arm), **found}

    def _train(self, piece: Piece, arm: Training) -> dict[str, Any]:
        start = self._start(arm.start, piece.seed)
        saved = f"trainer.save_freq={arm.trial.steps if arm.keeps else -1}"
        model = f"actor_rollout_ref.model.path={start}/model"
        steps, seconds = self._main_ppo(piece, start, (model, f"data.seed={piece.seed}", saved, *arm.overrides))
        return {"seconds": seconds, **numbers(arm.trial, steps)}

    def _train_within(self, piece: Piece, arm: Training, other: str) -> dict[str, Any]:
        """Return the numbers of an arm whose team plays in another arm's run. Its seconds are 0, because they count for
        the other arm."""
        run = Piece(ARMS[other], piece.seed)
        metrics = RUNS / run.key / "metrics.jsonl"
        if not (finished(run) and metrics.exists()):
            self.run(run)
        return {"seconds": 0, **numbers(arm.trial, read_steps(metrics))}

    def _evaluate(self, piece: Piece, arm: Evaluation) -> dict[str, Any]:
        models = {
            role: self._exported(Piece(ARMS[one.arm], piece.partner(one)), one.policy)
            for role, one in arm.roles.items()
        }
        start = self._start(arm.start, piece.seed)
        steps, seconds = self._main_ppo(piece, start, weights(arm.trial, models, start))
        return {"seconds": seconds, **validated(arm.trial, steps)}

    def _main_ppo(self, piece: Piece, start: Path, overrides: Sequence[str]) -> tuple[list[Step], int]:
        """Return the logged steps of the run and its duration in seconds."""
        folder = RUNS / piece.key
        folder.mkdir(parents=True, exist_ok=True)
        metrics = folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        overrides = [
            *([] if isinstance(piece.arm, Training) and piece.arm.on_gpu else ["+platform=cpu"]),
            f"+mas={piece.arm.workflow}",
            *piece.arm.trial.settings,
            f"data.train_files={start}/train.parquet",
            f"data.val_files={start}/{piece.arm.trial.held_out}",
            *overrides,
            f"trainer.default_local_dir={folder}/checkpoints",
            "trainer.resume_mode=disable",
        ]
        with self.places.one() as place:
            environment, more = place.joined(os.environ | OWN | {"VERL_FILE_LOGGER_PATH": str(metrics)})
            began = time.time()
            main_ppo = (place.python, "-m", "verl.trainer.main_ppo")
            self._call([*main_ppo, *overrides, *more], folder / "log.txt", environment)
            return read_steps(metrics), round(time.time() - began)

    def _start(self, start: Start, seed: int) -> Path:
        """Make the tasks and the warmed-up model, which all arms with the same seed and start share."""
        folder = RUNS / f"start-{start.name}-{seed}"
        done = folder / "done"
        with self._locks[folder]:
            if not done.exists() or done.read_text() != " ".join(start.command):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                main = f"import sys, {', '.join(DATA_SETS)}; from verl_mas.cli import main; sys.exit(main())"
                options = ("--out", str(folder), "--seed", str(seed))
                self._call([sys.executable, "-c", main, *start.arguments, *options], folder / "log.txt")
                done.write_text(" ".join(start.command))
        return folder

    def _exported(self, trained: Piece, policy: str) -> Path:
        target = RUNS / trained.key / f"{policy}-hf"
        with self._locks[target]:
            if not (target / "config.json").exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source = ("--backend", "fsdp", "--local_dir", str(checkpoint_of(trained) / policy))
                command = [sys.executable, "-m", "verl.model_merger", "merge", *source, "--target_dir", str(target)]
                self._call(command, RUNS / trained.key / "merge.txt")
        return target

    def _call(self, command: Sequence[str], log: Path, environment: Mapping[str, str] = OWN) -> None:
        with log.open("w") as output:
            subprocess.run(
                [*self.through, *command],
                check=True,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def _forget(piece: Piece) -> None:
    """Delete an earlier run of this piece with its weights, and the results of evaluations that used these weights."""
    shutil.rmtree(RUNS / piece.key, ignore_errors=True)
    for arm in ARMS.values():
        for seed in range(arm.seeds):
            if piece in needs(Piece(arm, seed)):
                result_of(Piece(arm, seed)).unlink(missing_ok=True)


def weights(trial: Trial, models: Mapping[str, Path], start: Path) -> tuple[str, ...]:
    """Return the overrides of a validation in which each role loads its weights from a folder."""
    paths = ", ".join(f"{role}: {{overrides: {{model: {{path: {path}}}}}}}" for role, path in models.items())
    return (
        f"actor_rollout_ref.model.path={start}/model",
        f"mas.policies={{{paths}}}",
        *trial.per_role,
        "trainer.val_only=true",
    )


def validated(trial: Trial, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the share of solved held-out tasks by step, and the same for each control."""
    by_step = {name: _by_step(steps, key) for name, key in trial.controls.items()}
    return {"success": _by_step(steps, trial.success), **({"controls": by_step} if by_step else {})}


def _by_step(steps: Sequence[Step], key: str) -> dict[str, float]:
    places, values = series(list(steps), key)
    return dict(zip(map(str, places), values, strict=True))


def numbers(trial: Trial, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the success by step, and the stored metrics. A metric has a value per step: None if the step did
    not log it."""
    trained = [step for step in steps if step.number > 0]
    if [step.number for step in trained] != [*range(1, trial.steps + 1)]:
        raise ValueError(f"a run of {trial.steps} steps logged {[step.number for step in trained]}")
    keys = sorted({key for step in trained for key in step.values if key.endswith(KEPT) and not key.startswith("val-")})
    kept = {key: [_rounded(step.values.get(key)) for step in trained] for key in keys}
    if trial.tokens:
        own = [step.values[trial.tokens] * step.values["session/count"] for step in trained]
        kept["session/generated_tokens"] = list(map(_rounded, own))
    return {**validated(trial, steps), "series": kept}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
