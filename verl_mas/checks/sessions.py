"""Checks of how many sessions run at once, and of how their engines are served."""

from __future__ import annotations

from collections.abc import Iterator

from verl_mas.config.capacity import workers
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import served_on, used_pools
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning


def check_sessions(run: Run) -> Iterator[ConfigError]:
    limit, count = run.mas.max_sessions, workers(run.config)
    if limit is not None and limit < count:
        yield ConfigError(
            f"mas.max_sessions={limit} with {SECTION}.rollout.agent.num_workers={count}",
            rule="the sessions are divided over the agent-loop workers, and each runs at least one at a time",
            fix=f"set mas.max_sessions={count} or more, or {SECTION}.rollout.agent.num_workers={limit}",
        )


def check_limits(mas: MasConfig) -> Iterator[ConfigWarning]:
    act, session = mas.faults.act_timeout_s, mas.faults.session_timeout_s
    if act > session:
        yield ConfigWarning(
            f"mas.faults.act_timeout_s={act:g} with mas.faults.session_timeout_s={session:g}",
            reason="the session of an act ends before the act",
            fix=f"set mas.faults.session_timeout_s to more than {act:g}",
        )


def check_serving(mas: MasConfig) -> Iterator[ConfigWarning]:
    for pool in used_pools(mas):
        names = served_on(mas, pool)
        if mas.pools[pool].serving == "phases" and len(names) == 1:
            yield ConfigWarning(
                f"mas.pools.{pool}.serving=phases with one policy, {names[0]}",
                reason="phases are the turns of several policies; the engines of one are always awake",
                fix=f"remove the setting, or put another policy on the pool: ++mas.policies.<policy>.pool={pool}",
            )
