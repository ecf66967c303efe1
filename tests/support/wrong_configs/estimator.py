"""Estimators that a team has not, or that have nothing to compare."""

from __future__ import annotations

from wrong_configs.case import wrong

AGENT_GRPO, PER_AGENT = "agent_grpo", "compared per agent"

CASES = (
    wrong("algorithm.adv_estimator=grpo", AGENT_GRPO),
    wrong("algorithm.adv_estimator=rloo", "agent_rloo"),
    wrong("algorithm.adv_estimator=gae", "a critic would need"),
    wrong("algorithm.adv_estimator=reinforce_plus_plus_baseline", "agent_reinforce_pp"),
    wrong("algorithm.adv_estimator=remax", PER_AGENT),
    wrong("algorithm.adv_estimator=grpo_passk", PER_AGENT),
    wrong("algorithm.adv_estimator=gpro", "did you mean 'agent_grpo'?"),
    wrong("algorithm.adv_estimator=agent-grpo", "did you mean 'agent_grpo'?"),
    wrong("algorithm.adv_estimator=dapo", "known: agent_gigpo"),
    wrong("algorithm.adv_estimator=at_grpo", "which does not branch"),
    wrong("algorithm.adv_estimator=agent_grpo ++mas.advantage.gamma=0.9", "agent_grpo does not read gamma"),
    wrong("algorithm.adv_estimator=agent_gigpo ++mas.advantage.gamma=2", "between 0 and 1"),
    wrong("algorithm.adv_estimator=agent_rloo ++mas.advantage.baseline=median", "leave_one_out"),
    wrong("algorithm.adv_estimator=agent_grpo critic.enable=true", "a critic would need"),
)
