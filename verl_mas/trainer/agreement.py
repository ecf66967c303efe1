"""Checks that engines sample with the weights that are trained, and ends the run if they do not.

The metrics `agent/<agent>/log_probs/*` have the distance between the log-probs of engine and trainer, for tokens that
the current weights sampled. At the first comparison, both have the initial weights of the run, so the distance comes
from rounding and from sampling parameters such as a penalty. If new weights do not arrive, each update increases the
distance.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import cast

from verl_mas.errors import UpdateFailed
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.run_folder.metrics.findings import STEPS
from verl_mas.run_folder.metrics.names import AGENT, agent, names_in
from verl_mas.verl_.types import Fields

# Key of the first distances in the `run.json` of a checkpoint.
FIRST = "first distance of engine and trainer"
TIMES = 3  # limit as a multiple of the first distance; in healthy steps, the distance grows less
AT_ONCE = 2  # number of comparisons after a start; in these, one distance above the limit ends the run
FEWEST = 64  # minimum tokens of a comparison; in bfloat16, single tokens may differ by more than the limit


class Agreement:
    """Comparisons of engine and trainer in the steps of a run.

    `resumed`: the checkpoint from which the run continues; it has the first distances of its agents.

    `corrected`: whether the loss corrects for probabilities that differ between engines and trainer. If it does, the
    distance may grow over time.
    """

    def __init__(self, resumed: Checkpoint | None = None, *, corrected: bool = False):
        self.first: dict[str, float] = dict(cast("Fields", resumed.run).get(FIRST, {})) if resumed else {}
        self._corrected = corrected
        self._compared: Counter[str] = Counter()
        self._apart: Counter[str] = Counter()  # consecutive comparisons above the limit

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        """Raise UpdateFailed if an agent's engine seems to have other weights than the trainer.

        In the first comparisons after a start, one distance above the limit raises the error. Later, `STEPS`
        consecutive distances above the limit raise it; if `corrected` is true, later comparisons never raise it.
        """
        for name in names_in(metrics, AGENT, "log_probs/mean"):
            mean, limit, tokens = (metrics[agent(name, f"log_probs/{key}")] for key in ("mean", "limit", "tokens"))
            if tokens < FEWEST:
                continue
            first = self.first.setdefault(name, mean)
            self._compared[name] += 1
            self._apart[name] = self._apart[name] + 1 if mean > max(limit, TIMES * first) else 0
            most = 1 if self._compared[name] <= AT_ONCE else math.inf if self._corrected else STEPS
            if self._apart[name] >= most:
                raise UpdateFailed(
                    f"in step {step} the log-probs of engine and trainer differ by {mean:.2g} per token of agent "
                    f"{name}, and by {first:.2g} at first\n"
                    f"  rule: both have the weights of the same step, and rounding explains at most {limit:g}\n"
                    "  fix:  install the versions of versions/constraints.txt, and read in the engine's log whether it "
                    "takes the weights; if the policy itself has diverged, resume with a smaller optim.lr"
                )
