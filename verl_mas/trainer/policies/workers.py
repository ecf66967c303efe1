"""The training processes of a policy, as its trainer calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from verl.single_controller.ray import RayWorkerGroup

from verl_mas import data_plane
from verl_mas.data_plane import Rows
from verl_mas.row import MULTI_MODAL_INPUTS, TEMPERATURE

T = TypeVar("T")
_SCORES_TOKENS = {"compute_log_prob", "compute_ref_log_prob", "update_actor"}


class Workers:
    """A worker group that reads of the rows what it computes with, and takes log-probs at each row's own temperature.

    verl's trainer sends every field, and sets one temperature for the batch, which would override the row's.
    """

    def __init__(self, group: RayWorkerGroup):
        self.group = group

    def __getattr__(self, name: str) -> object:
        method = getattr(self.group, name)
        return partial(self.on_rows, method) if name in _SCORES_TOKENS else method

    def on_rows(self, method: Callable[[Rows], T], rows: Rows) -> T:
        temperatures = {tag[TEMPERATURE] for tag in rows.tags}
        if len(temperatures) > 1:
            rows.extra_info.pop(TEMPERATURE, None)
        else:
            rows.extra_info[TEMPERATURE] = temperatures.pop()
        return method(data_plane.for_workers(rows, also=[MULTI_MODAL_INPUTS]))
