"""Measure from session records how much of the returns' variance is between histories. Branching removes this part.

    python -m benchmarks.evidence.variance <folder of trajectories> [train|val]

Candidates of one act share their history, but the sessions of a task do not. So the candidates' scores at an agent's
turn, over several sessions of a task, give both parts (one-way analysis of variance with random effects). The records
need several sessions per task and several candidates per act. A validation can have them, too, scored by continuation:
`trainer.val_only=true actor_rollout_ref.rollout.val_kwargs.n=4 mas.branch.validation_k=4`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_mas.results.sessions.reader import read_sessions
from verl_mas.run_folder.records import Record

# Key: task, step, agent, instance and turn.
Place = tuple[str, int, str, int, int]


@dataclass(frozen=True)
class Variance:
    """The parts of the variance of scores within a task and turn, averaged over tasks and turns."""

    between: float
    within: float
    groups: int

    @property
    def share(self) -> float | None:
        """Return the variance between histories divided by the total variance; None if no score varies.

        The share can be slightly negative, because both parts are unbiased estimates.
        """
        total = self.between + self.within
        return self.between / total if total > 0 else None

    def __str__(self) -> str:
        share = "-" if self.share is None else f"{self.share:.3f}"
        return f"{share} (between {self.between:.4f}, within {self.within:.4f}, {self.groups} groups)"


def variance(sessions: Iterable[Record], agent: str | None = None) -> Variance:
    """Split the variance of the candidates' scores, of one agent or, with None, of all agents."""
    groups: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        for act in session["acts"]:
            if act["probe"] or session["status"] != "finished" or agent not in (None, act["agent"]):
                continue
            place = session["uid"], session["step"], act["agent"], act["instance"], act["turn"]
            groups[place][str(session["session"])].append(act["reward"]["score"])
    parts = [part for group in groups.values() if (part := components(list(group.values()))) is not None]
    if not parts:
        return Variance(0.0, 0.0, 0)
    return Variance(fmean(part[0] for part in parts), fmean(part[1] for part in parts), len(parts))


def components(histories: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the unbiased variances between and within histories.

    Return None if there are fewer than two histories, or if no history has two scores.
    """
    sizes = [len(scores) for scores in histories]
    count, spare = sum(sizes), sum(sizes) - len(sizes)
    if len(histories) < 2 or not spare:
        return None
    means, mean = [fmean(scores) for scores in histories], fmean(score for scores in histories for score in scores)
    pairs = list(zip(histories, means, strict=True))
    within = sum((score - own) ** 2 for scores, own in pairs for score in scores) / spare
    around = sum(len(scores) * (own - mean) ** 2 for scores, own in pairs) / (len(histories) - 1)
    typical = (count - sum(size * size for size in sizes) / count) / (len(histories) - 1)
    return (around - within) / typical, within


def main(folder: str, partition: str = "train") -> None:
    sessions = list(read_sessions(folder, validate=partition == "val"))
    agents = sorted({act["agent"] for session in sessions for act in session["acts"]})
    lines = [f"{agent}: {variance(sessions, agent)}" for agent in agents]
    sys.stdout.write("\n".join([f"all agents: {variance(sessions)}", *lines]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
