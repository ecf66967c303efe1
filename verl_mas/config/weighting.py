"""verl's mode of aggregating the loss, chosen by `mas.loss.weighting`."""

from __future__ import annotations

from omegaconf import DictConfig, open_dict

from verl_mas.config.merge import SECTION
from verl_mas.config.schema import Weighting

# verl's mode of aggregation that each weighting is made of.
LOSS_MODES: dict[Weighting, str] = {
    "token": "seq-mean-token-sum",
    "row": "seq-mean-token-mean",
    "agent": "seq-mean-token-mean",
    "session": "seq-mean-token-mean",
}


def set_mode(view: DictConfig, weighting: Weighting | None) -> None:
    """Choose it in the configuration of a policy."""
    if weighting is not None:
        with open_dict(view):
            view[SECTION].actor.loss_agg_mode = LOSS_MODES[weighting]
