"""trainer.v1.trainer_mode=mas: every step plays its sessions, then trains on them."""

from __future__ import annotations

from verl_mas.config.modes import SYNC
from verl_mas.trainer.trainer import TeamTrainer


class MasTrainer(TeamTrainer):
    mode = SYNC
