"""Settings of the embedded engine, for a team that is loaded. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from verl_mas.config.values import Checked, Count, Positive, Range
from verl_mas.workflow.team_file import Dtype


@dataclass(frozen=True)
class EngineSettings(Checked):
    """`engine` of `verl_mas.load`, and --engine of the commands."""

    device: str | None = None  # Where it computes, such as cuda:1. None: on a GPU if there is one
    dtype: Dtype | None = None  # Precision of the weights. None: that of the run
    threads: Count | None = None  # Threads of torch. None: one per core
    cache_gib: Positive = 2.0  # Memory for keys and values; decides how many sequences run at once
    max_sequences: Count = 256  # Sequences that run at once, at most
    max_model_len: Count | None = None  # Tokens of prompt and reply together. None: what the run allowed
    seed: Annotated[int, Range(0)] = 0  # The same task, session number and seed give the same session
