"""Whether the checkpoint that a run would resume from belongs to that run."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from verl_mas.checks.refusals import user_code
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError
from verl_mas.run_folder.checkpoints import to_resume
from verl_mas.run_folder.lock import check_lock
from verl_mas.trainer.checkpoint import auto_resumes, other_run, run_identity


def check_checkpoint(config: DictConfig, mas: MasConfig) -> Iterator[ConfigError]:
    """Checks the run's folder, if this machine has it."""
    yield from check_lock(config)
    checkpoint = to_resume(config)
    if checkpoint and auto_resumes(config):
        with user_code():
            identity = run_identity(config, mas)
        yield from other_run(checkpoint, identity)
