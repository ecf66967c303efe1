from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.loss import check_filter
from verl_mas.config.run import Run
from verl_mas.config.schema import FilterSpec, MasConfig


@pytest.mark.parametrize("by", ["score", "team"])
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_uniform_tasks_are_dropped_where_rows_are_compared_within_their_task(name, by):
    config = OmegaConf.create({"algorithm": {"adv_estimator": name}, "trainer": {"val_only": False}, "data": {}})
    mas = MasConfig(
        filter=FilterSpec(drop="uniform", refill=True, by=by),
        advantage={"main": "x"} if name == "hierarchical_grpo" else {},
    )
    over_all_tasks = name in ("agent_reinforce_pp", "agent_rae") and by == "score"
    assert [error.value for error in check_filter(Run(config, mas))] == (
        [f"mas.filter.drop=uniform with algorithm.adv_estimator={name}"] if over_all_tasks else []
    )


def test_an_evaluation_filters_nothing():
    config = OmegaConf.create({"trainer": {"val_only": True}})
    assert list(check_filter(Run(config, MasConfig(filter=FilterSpec(refill=True))))) == []
