"""Keys, groups and names with a letter too many, too few or wrong."""

from __future__ import annotations

from wrong_configs.case import wrong

CASES = (
    wrong("+maz=solver_verifier", "mas"),
    wrong("data.train_batchsize=8", "data.train_batch_size"),
    wrong("++data.train_batchsize=8", "data.train_batch_size"),
)
