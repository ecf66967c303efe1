"""How much of the variance of returns is between histories: what branching removes, measured from session records.

    python -m benchmarks.evidence.variance <folder of trajectories> [train|val]

Candidates of one act share their history; the sessions of a task do not. So the scores of the candidates of an agent's
turn on a task, over several sessions, give both parts (one-way analysis of variance with random effects). It needs
several sessions per task and several candidates per act. A validation has them, too, scored by continuation:
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
    """The parts of a score's variance on one task and turn, averaged over tasks and turns."""

    between: float
    within: float
    groups: int

    @property
    def share(self) -> float | None:
        """The variance between histories divided by the total; None if nothing varies. It can be slightly negative,
        because both parts are unbiased."""
        total = self.between + self.within
        return self.between / total if total > 0 else None

    def __str__(self) -> str:
        share = "-" if self.share is None else f"{self.share:.3f}"
        return f"{share} (between {self.between:.4f}, within {self.within:.4f}, {self.groups} groups)"


def variance(sessions: Iterable[Record], agent: str | None = None) -> Variance:
    """Split the variance of the candidates' scores, of all agents or of one."""
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
    """Return the unbiased variances between and within histories. None without two histories, or without two scores of
    one history."""
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
