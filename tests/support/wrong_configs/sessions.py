"""How many sessions run at once, their time limits, and how the engines of a pool are served."""

from __future__ import annotations

from wrong_configs.case import wrong

POLICIES = "++mas.policies.a={} ++mas.policies.b={} mas.agents.solver.policy=a mas.agents.verifier.policy=b"
ROLLOUT = "actor_rollout_ref.rollout"

CASES = (
    wrong("mas.max_sessions=0", "mas.max_sessions"),
    wrong("mas.max_sessions=-8", "mas.max_sessions"),
    wrong("mas.max_sessions=few", "mas.max_sessions"),
    wrong(f"mas.max_sessions=4 {ROLLOUT}.agent.num_workers=8", "each runs at least one at a time"),
    wrong("mas.faults.max_timeout_share=1.5", "mas.faults.max_timeout_share"),
    wrong("mas.faults.max_timeout_share=-0.1", "mas.faults.max_timeout_share"),
    wrong(f"{POLICIES} ++mas.pools.shared.serving=turns", "together"),
    wrong("++mas.pools.shared.serving=phases", "phases are the turns of several policies", warned=True),
)
