"""The trainer modes of a team: the values of `trainer.v1.trainer_mode` with which a team is trained."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

KEY = "trainer.v1.trainer_mode"


@dataclass(frozen=True)
class Mode:
    name: str
    verl: str
    """verl's name of the mode: it has its settings under `trainer.v1.<this>`, and tests for it where it chooses the
    replay buffer and the parts of a checkpoint."""

    @property
    def asynchronous(self) -> bool:
        """Whether sessions run on while weights change."""
        return self is not SYNC


SYNC = Mode("mas", "sync")
COLOCATED = Mode("mas_colocate_async", "colocate_async")
SEPARATE = Mode("mas_separate_async", "separate_async")
MODES = {mode.name: mode for mode in (SYNC, COLOCATED, SEPARATE)}


def mode_of(config: DictConfig) -> Mode | None:
    """The mode of a team's run; None of a run of verl's own trainers."""
    found = MODES.get(OmegaConf.select(config, KEY))
    return None if config.get("mas") is None else found
