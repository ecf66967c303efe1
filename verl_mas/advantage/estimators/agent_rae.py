"""SPIRAL's role-conditioned advantage estimation (arXiv 2506.24119): a running baseline per role."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.record import RUNNING_DECAY, owner_columns


@estimator(remembers=True, baseline="leave_one_out", scale="none", weighting="per_session", decay=RUNNING_DECAY)
def agent_rae(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = R - b, where b is the running mean of the role's scores on all tasks of the data source.

    b includes this step's scores except those of the row's own session. So b does not depend on the act whose
    advantage is computed, and b exists from the first step on.
    """
    assert batch.running is not None
    role = owner_columns(batch)
    groups = batch.partition(*role)
    return within(batch, groups, options, pool=role, prior=batch.running.prior(batch, groups, options.decay or 0.0))
