"""What an evaluation found: pass@k per data source, a row per agent, the difference of two teams on the same tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from verl_mas.trainer.pass_at_k import SOLVED, interval, ks, mean_of_sets, pass_at_k, report
from verl_mas.verl_.types import Fields

Table = dict[str, dict[str, float]]


def summary(records: Sequence[Fields]) -> Fields:
    """Sessions that failed count as 0, as in validation."""
    failed = [record for record in records if record["failed"]]
    # mean@n and pass@k with intervals over tasks, as validation has them.
    sources: Table = {source: dict(report(list(tasks.values()))) for source, tasks in _by_source(records).items()}
    if overall := mean_of_sets(list(sources.values())):
        sources["mean_of_sets"] = overall
    acts: dict[str, list[Fields]] = defaultdict(list)
    for act in (act for record in records for act in record["acts"]):
        acts[act["agent"]].append(act)
    return {
        "tasks": len({record["task"] for record in records}),
        "sessions": len(records),
        "failed": len(failed),
        "faults": dict(Counter(record["faults"][-1]["kind"] for record in failed)),
        "sources": sources,
        "agents": {agent: _of_acts(found, len(records)) for agent, found in acts.items()},
    }


def _of_acts(acts: Sequence[Fields], sessions: int) -> dict[str, float]:
    """Shares and means over the acts of an agent."""
    own = [act["reward"] for act in acts if act["reward"] is not None]
    calls = sum(act["tool_calls"] for act in acts)
    return {
        "acts_per_session": len(acts) / sessions,
        "malformed": _mean([act["malformed"] is not None for act in acts]),
        "truncated": _mean([act["truncated"] for act in acts]),
        "tokens_per_act": _mean([act["tokens"] for act in acts]),
        **({"own_reward": _mean(own)} if own else {}),
        **({"tool_errors": sum(act["tool_errors"] for act in acts) / calls} if calls else {}),
    }


def difference(first: Sequence[Fields], second: Sequence[Fields]) -> Table:
    """The first minus the second, per source: of each task the two results are compared with each other, and the
    interval is over tasks."""
    theirs, differences = _by_source(second), {}
    for source, mine in _by_source(first).items():
        pairs = [(values, theirs[source][task]) for task, values in mine.items()]
        sessions = min(len(values) for pair in pairs for values in pair)
        differences[source] = _with_interval(f"mean@{sessions}", [_mean(a) - _mean(b) for a, b in pairs])
        for k in ks(sessions):
            differences[source] |= _with_interval(f"pass@{k}", [_solved(a, k) - _solved(b, k) for a, b in pairs])
    return differences


def _with_interval(name: str, per_task: Sequence[float]) -> dict[str, float]:
    low, high = interval(per_task)
    return {name: _mean(per_task), f"{name}/low": low, f"{name}/high": high}


def _solved(values: Sequence[float], k: int) -> float:
    return pass_at_k(len(values), sum(value >= SOLVED for value in values), k)


def _by_source(records: Sequence[Fields]) -> dict[str, dict[int, list[float]]]:
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        values[record["source"]][record["task"]].append(record["value"])
    return values


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
