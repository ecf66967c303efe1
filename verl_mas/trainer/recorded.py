"""What a run writes about itself into its folder."""

from __future__ import annotations

import logging
import math
import shlex
from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.config.schema import MasConfig
from verl_mas.errors import DiskError
from verl_mas.run_folder.about import AboutFile
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.run_folder.lock import RunLock
from verl_mas.run_folder.metrics import MetricsFile
from verl_mas.trainer.attempt import attempt, now, places
from verl_mas.trainer.tracking import logging_to

if TYPE_CHECKING:
    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger, which has the handler in the trainer's process.
logger = logging.getLogger(f"verl.{__name__}")


class Recorded(PPOTrainer):
    """A trainer with a folder of its own, but in an evaluation: that may run beside a training."""

    mas: MasConfig
    lock: RunLock | None = None
    resumed: Checkpoint | None = None
    _about: AboutFile | None = None

    def record(self) -> None:
        """Before anything is set up, so that a start that fails is recorded, too."""
        if self.lock is None:
            return
        start = attempt(self.config, self.mas, self.resumed.step if self.resumed else None)
        self._about = AboutFile(self.lock.folder, start, OmegaConf.to_container(self.config, resolve=True))
        logger.info("%s", places(self.config, self.mas, self.lock.folder))

    def fit(self, agent_loop_manager: MasAgentLoopManager) -> None:  # type: ignore[override]
        step = self.resumed.step if self.resumed else None
        own = MetricsFile(self.lock.folder, step) if self.lock else None
        how = "interrupted"
        try:
            # An evaluation adds to what a run has logged.
            with logging_to(own, step if own else math.inf):
                super().fit(agent_loop_manager)
            how = "finished"
        except Exception as error:
            how = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            raise
        finally:
            if own and self._about:
                self._end(own, self._about, how)

    def _end(self, metrics: MetricsFile, written: AboutFile, how: str) -> None:
        folder = metrics.path.parent
        try:
            written.end({"at": now(), "step": metrics.last, "by": how})
        except DiskError as error:
            # Why the run has ended is something else, or nothing.
            logger.warning("%s", error)
        report = f"  to read it   verl-mas report {shlex.quote(str(folder))}"
        logger.info("%s\n%s\n%s", how, places(self.config, self.mas, folder), report)
