"""Whether the engines of several policies can run beside each other."""

from __future__ import annotations

from collections.abc import Iterator

from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError


def check_engines(run: Run) -> Iterator[ConfigError]:
    """verl names servers by their rank. verl-mas gives each policy ranks of its own, where verl looks them up."""
    names = local_policies(run.mas)
    if len(names) == 1:
        return
    for name in names:
        engine = str(run.view(name).value("rollout.name"))
        if not facts_of(engine).many:
            several = [other for other in ENGINES if ENGINES[other].many]
            yield ConfigError(
                f"policy {name}: rollout.name={engine} in a run with {len(names)} policies",
                rule="verl gives the servers of this engine the same names for every policy",
                fix=f"set actor_rollout_ref.rollout.name to one of {', '.join(several)}, or serve all agents with one "
                "policy",
            )
        if run.view(name).get("rollout.disaggregation.enabled"):
            yield ConfigError(
                f"policy {name}: rollout.disaggregation.enabled=True in a run with {len(names)} policies",
                rule="verl gives servers that only prefill or only decode the same names for every policy",
                fix="set actor_rollout_ref.rollout.disaggregation.enabled=False, or serve all agents with one policy",
            )
