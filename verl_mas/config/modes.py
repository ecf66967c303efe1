"""Trainer modes of teams: values of `trainer.v1.trainer_mode`."""

import math
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

KEY = "trainer.v1.trainer_mode"
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"
STRATEGY = "trainer.v1.sampler.max_off_policy_strategy"


@dataclass(frozen=True)
class Mode:
    name: str
    # verl's name of the mode. Its settings are in `trainer.v1.<name>`. verl chooses the replay buffer and the parts of
    # a checkpoint by this name.
    verl: str

    @property
    def asynchronous(self) -> bool:
        """Whether sessions keep running while weights change."""
        return self is not SYNC

    @property
    def warmup_key(self) -> str:
        return f"trainer.v1.{self.verl}.num_warmup_batches"


SYNC = Mode("mas", "sync")
COLOCATED = Mode("mas_colocate_async", "colocate_async")
SEPARATE = Mode("mas_separate_async", "separate_async")
MODES = {mode.name: mode for mode in (SYNC, COLOCATED, SEPARATE)}


def mode_of(config: DictConfig) -> Mode | None:
    """Return the mode of a team's run; None for a run of verl's own trainers."""
    found = MODES.get(OmegaConf.select(config, KEY))
    return None if config.get("mas") is None else found


@dataclass(frozen=True)
class Staleness:
    """Limits on how far tasks may be dispatched ahead of the training, read from verl's settings."""

    # W: batches of tasks that are dispatched before the first step, so a step trains on tasks dispatched W steps ago.
    warmup: float
    # T: the largest number of weight versions that a group may span, from its dispatch to its update.
    threshold: int | None
    strategy: str  # If a group has reached T: `wait` for the group, or `drop` it

    @property
    def least(self) -> int:
        """Smallest threshold that a group can meet if its task is dispatched W steps ahead of training."""
        return math.ceil(self.warmup) + 1


def staleness_of(config: DictConfig) -> Staleness | None:
    """Read the staleness settings; None for a run that is not asynchronous."""
    mode = mode_of(config)
    if mode is None or not mode.asynchronous:
        return None
    warmup, threshold, strategy = (OmegaConf.select(config, key) for key in (mode.warmup_key, THRESHOLD, STRATEGY))
    return Staleness(warmup, None if threshold is None else int(threshold), str(strategy))
