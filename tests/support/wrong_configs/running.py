"""Running scores that an estimator does not keep, or that are of another team."""

from __future__ import annotations

import json

from wrong_configs.case import TEAM, wrong
from wrong_configs.files import Prepare, all_of, checkpoint, text

RAE = "algorithm.adv_estimator=agent_rae trainer.resume_mode=auto"
SHRINK = "trainer.resume_mode=auto ++mas.advantage.shrinkage=2"
OF = {"algorithm.adv_estimator": "agent_rae", "mas.advantage.weighting": "per_session", "roles": ["solver", "verifier"]}
SCORES = [{"source": "math", "role": "guide", "mass": 3.0, "mean": 0.5, "variance": 0.25}]
ALONE = " ".join(part for part in TEAM if "mas=" not in part and "adv_estimator" not in part)


def saved(content: str) -> Prepare:
    """A checkpoint with running scores."""
    return all_of(checkpoint(4, pointer="4"), text("checkpoints/global_step_4/running_scores.json", content))


def of(**changes: object) -> Prepare:
    return saved(json.dumps({**OF, **changes, "scores": SCORES}))


CASES = (
    wrong(RAE, "is of roles=['driver', 'guide'], and this run has ['solver'", prepare=of(roles=["driver", "guide"])),
    wrong(SHRINK, "is of algorithm.adv_estimator=agent_rae, and this run has agent_grpo", prepare=of()),
    wrong(f"{RAE} ++mas.advantage.weighting=per_act", "mas.advantage.weighting=per_session", prepare=of()),
    wrong(RAE, "running_scores.json cannot be read", prepare=saved('{"roles"')),
    wrong(RAE, "has no running_scores.json", warned=True, prepare=checkpoint(4, pointer="4")),
    wrong("++mas.advantage.decay=0.5", "for shrinkage only"),
    wrong("++mas.advantage.shrinkage=0", "above 0"),
    wrong("algorithm.adv_estimator=agent_rae ++mas.advantage.decay=1.5", "between 0 and 1"),
    wrong("algorithm.adv_estimator=agent_rae ++mas.advantage.shrinkage=2", "agent_rae does not read shrinkage"),
    wrong(f"{ALONE} algorithm.adv_estimator=agent_rae", "without a team", alone=True),
)
