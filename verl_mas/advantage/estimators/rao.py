"""RAO (arXiv 2605.06639) for an agent that spawns itself: the baseline is the root agent's score in other sessions."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator
from verl_mas.advantage.kernel import moments, total, units_per_group
from verl_mas.advantage.options import REQUIRED
from verl_mas.config.registry import nearest
from verl_mas.errors import DataError
from verl_mas.util.later import Tensor, torch


# RAO has its own baseline, so it does not read the common options `baseline`, `scale` and `weighting`.
@estimator(
    compares_sessions=True,
    one_baseline=True,
    numbers_acts=True,
    needs=("instance",),
    main=REQUIRED,
    baseline=None,
    scale=None,
    weighting=None,
)
def rao(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = w_k (R - b), where b is the mean score of `main` in the other sessions of the task.

    w_k = N / (K N_k), where N_k is the number of invocations of agent k in the step, and N is the number of invocations
    of all K agents. So each agent has the same weight, however often it is invoked. Here, each depth of the recursion
    is an agent, and each copy that is spawned at this depth is an invocation of the agent.
    """
    tasks, sessions, scores = batch.partition("task"), batch.partition("task", "session"), batch.scores.double()
    share = _share_of_main(batch, str(options.main))
    others, summed = (
        total(part, tasks)[tasks.ids] - total(part, sessions)[sessions.ids] for part in (share, share * scores)
    )
    alone = scores if options.group_of_one == "raw" else torch.zeros_like(scores)
    advantages = torch.where(others > 0.5, scores - summed / others.clamp_min(0.5), alone)
    agents, invocations = batch.partition("agent"), batch.partition("task", "session", "agent", "instance")
    weights = invocations.count / (agents.count * units_per_group(agents, invocations).double())
    stats = replace(moments(scores, tasks, options.deviation)[2], size=units_per_group(tasks, invocations))
    return AdvantageOutput(weights[agents.ids] * advantages, tasks, stats)


def _share_of_main(batch: AdvantageInput, main: str) -> Tensor:
    """Return a weight per row [N]: the acts of `main` in a session share a weight of 1; other acts have weight 0."""
    agents, owners = batch.codes("agent"), batch.partition("task", "session", "agent")
    known = list(map(str, batch.agents or agents.names))
    if main not in known:
        rule = "rows are compared with those of the agent that begins a session"
        raise DataError(f"mas.advantage.main={main}", rule=rule, fix=nearest(main, known))
    is_main = torch.tensor([name == main for name in agents.names], device=owners.ids.device)[agents.ids]
    return is_main / torch.bincount(owners.ids).double()[owners.ids]
