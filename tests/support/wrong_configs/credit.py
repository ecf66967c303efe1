"""Estimators whose options do not fit them, or the team."""

from __future__ import annotations

from wrong_configs.case import wrong

CASES = (
    wrong("algorithm.adv_estimator=team_grpo ++mas.advantage.by=role", "whatever their roles"),
    wrong("algorithm.adv_estimator=agent_grpo ++mas.advantage.by=roles", "one of agent, role"),
    wrong("algorithm.adv_estimator=hierarchical_grpo", "set ++mas.advantage.main"),
    wrong("algorithm.adv_estimator=hierarchical_grpo ++mas.advantage.main=solvr", "did you mean 'solver'?"),
    wrong("algorithm.adv_estimator=agent_grpo ++mas.advantage.main=solver", "agent_grpo does not read main"),
)
