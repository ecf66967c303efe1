"""Whether the checkpoint that a run would resume from belongs to that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.refusals import user_code
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError
from verl_mas.trainer.checkpoint import auto_resumes, latest_step, other_run, run_identity


def check_checkpoint(config: DictConfig, mas: MasConfig) -> Iterator[ConfigError]:
    """Checks the latest checkpoint, if this machine has its folder."""
    folder = Path(config.trainer.default_local_dir)
    if auto_resumes(config) and (step := latest_step(folder)):
        with user_code():
            identity = run_identity(config, mas)
        yield from other_run(folder / f"global_step_{step}", identity)
