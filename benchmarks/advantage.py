"""Measure the cost of the advantage kernel and of every estimator.

The kernel is compared with verl's Python loop and with one pass without options, each estimator with `agent_grpo`.

python benchmarks/advantage.py [--rows 65536] [--tokens 1024] [--most 1000000] [--estimators]
"""

from __future__ import annotations

import argparse
import resource
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from verl_mas.advantage import ESTIMATORS, AdvantageInput, AdvantageOptions, RunningScores, compute_advantages
from verl_mas.advantage.kernel import Partition, normalise
from verl_mas.advantage.record import PARTS, Moments, Owner
from verl_mas.advantage.verl_hook import stock

OPTIONS = AdvantageOptions().resolved("benchmark", {})
SESSIONS = 8


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time of several runs after a warm-up run. CPU time hardly depends on other programs."""
    function()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return float(np.median(taken))


@dataclass(frozen=True)
class Rows:
    """Rows of eight sessions per task, with one act per session, in random order."""

    uid: np.ndarray
    session: np.ndarray
    scores: Tensor

    @classmethod
    def draw(cls, count: int) -> Rows:
        tasks = np.array([uuid.uuid4().hex for _ in range(count // SESSIONS)], dtype=object)
        order = np.random.default_rng(0).permutation(len(tasks) * SESSIONS)
        return cls(tasks[order // SESSIONS], order % SESSIONS, torch.rand(len(order)))

    def record(self) -> AdvantageInput:
        zeros = torch.zeros(len(self.scores), dtype=torch.long)
        return AdvantageInput(self.scores, self.uid, self.session, agent=zeros, turn=zeros, branch=zeros)


# A session: an act of the leader, then two acts of each of two workers, then the leader again.
ACTS = [("leader", 0, 0), *(("worker", number, turn) for number in (1, 2) for turn in (0, 1)), ("leader", 0, 1)]
BASELINE = "agent_grpo"


def team_rows(count: int) -> AdvantageInput:
    """Make rows of eight sessions per task, with a leader and spawned workers, in random order."""
    acts = count // len(ACTS)
    order = np.random.default_rng(0).permutation(acts * len(ACTS))
    session, act = order // len(ACTS), order % len(ACTS)
    tasks = np.array([uuid.uuid4().hex for _ in range(acts // SESSIONS + 1)], dtype=object)
    agent, instance, turn = (np.array(column)[act] for column in zip(*ACTS, strict=True))
    return AdvantageInput(
        torch.rand(len(order)),
        tasks[session // SESSIONS],
        torch.from_numpy(session % SESSIONS),
        agent.astype(object),
        role=agent.astype(object),
        instance=torch.from_numpy(instance),
        turn=torch.from_numpy(turn),
        branch=torch.zeros(len(order), dtype=torch.long),
        observation=torch.from_numpy(order % 97),
        committed=torch.ones(len(order), dtype=torch.long),
        **{name: torch.rand(len(order)) for name in PARTS},
        tokens=torch.ones(len(order), dtype=torch.long),
    )


# Cases in addition to the defaults of every estimator. Their options change how rows count or are compared.
COUNTED = {
    "agent_grpo by=role": {"by": "role"},
    "agent_grpo weighting=per_invocation": {"weighting": "per_invocation"},
    "agent_grpo shrinkage=2": {"shrinkage": 2.0},
    "at_grpo baseline=leave_one_out scale=none": {"baseline": "leave_one_out", "scale": "none"},
}


# Statistics of the scores of earlier steps, for the estimators that compare rows with earlier scores.
EARLIER = {Owner("", role): Moments(1000.0, 0.5, 1 / 12) for role in ("leader", "worker")}


def whole(name: str, rows: AdvantageInput, options: AdvantageOptions) -> object:
    # A record caches its groups at the first use, so each run gets a new copy of the record.
    return compute_advantages(name, replace(rows), options, RunningScores(EARLIER))


def alone(name: str, rows: AdvantageInput, options: AdvantageOptions) -> object:
    given = rows.by_role() if options.by == "role" else replace(rows)
    return ESTIMATORS[name].function(replace(given, running=RunningScores(EARLIER)), ESTIMATORS[name].options(options))


MEASURED = {"with every check and diagnostic": whole, "groups and statistics alone": alone}


def estimators(most: int) -> None:
    """Print the time per row of every estimator, and its ratio to `agent_grpo`, at three numbers of rows. The time
    includes the conversion of labels into numbers."""
    every = {name: {"main": "leader"} if name == "hierarchical_grpo" else {} for name in ESTIMATORS} | COUNTED
    every = {BASELINE: every.pop(BASELINE), **every}
    sizes = (most // 100, most // 10, most)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for rows in map(team_rows, sizes):
        for label, options in every.items():
            name, chosen = label.split()[0], AdvantageOptions(**options)  # type: ignore[arg-type]
            for how, function in MEASURED.items():
                taken[how, label].append(seconds(partial(function, name, rows, chosen), 5) / len(rows))
    print(f"estimators on {len(ACTS)} acts per session: ns per row, and the ratio to {BASELINE},")
    print(f"at {', '.join(map(str, sizes))} rows")
    for how in MEASURED:
        print(f"  {how}")
        for label in every:
            ratios = [time / base for time, base in zip(taken[how, label], taken[how, BASELINE], strict=True)]
            times = "".join(f"{time * 1e9:7.0f}" for time in taken[how, label])
            print(f"    {label:42s}{times}  " + "".join(f"{ratio:7.2f} x" for ratio in ratios))


def by_hand(scores: Tensor, groups: Partition) -> Tensor:
    """Compute GRPO's advantages with index_add alone, without any options."""
    x = scores.double()
    zeros = torch.zeros(groups.count, dtype=torch.float64)
    count = zeros.clone().index_add_(0, groups.ids, torch.ones_like(x))
    mean = zeros.clone().index_add_(0, groups.ids, x) / count
    centred = x - mean[groups.ids]
    std = (zeros.index_add_(0, groups.ids, centred * centred) / (count - 1)).sqrt()
    return centred / (std[groups.ids] + 1e-6)


def peak_bytes(function: Callable[[], object]) -> int:
    """Return how much `function` raises the peak memory of the process."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    result = function()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    del result
    return peak - before


def memory(rewards: Tensor, mask: Tensor, index: np.ndarray) -> None:
    stock("agent_grpo")(rewards[:64], mask[:64], None, index[:64])
    rise = peak_bytes(lambda: stock("agent_grpo")(rewards, mask, None, index))
    output = mask.numel() * 4
    print(f"peak memory above the inputs: {rise / 2**20:.0f} MiB = {rise / output:.2f} x the output")


def statistics(rows: Rows) -> None:
    scores, one_token = rows.scores, torch.ones(len(rows.scores), 1)
    verl = seconds(lambda: compute_grpo_outcome_advantage(scores[:, None].clone(), one_token, rows.uid), 1)
    groups = rows.record().partition("task", "agent")
    hand = seconds(lambda: by_hand(scores, groups), 21)
    kernel = seconds(lambda: normalise(scores, groups, OPTIONS), 21)
    labelled = seconds(lambda: normalise(scores, rows.record().partition("task", "agent"), OPTIONS), 11)
    whole = seconds(lambda: compute_advantages("agent_grpo", rows.record()), 11)
    print(f"statistics of {len(scores)} rows: verl {verl * 1e3:.0f} ms")
    print(f"  kernel alone                     {kernel * 1e3:7.2f} ms  {verl / kernel:7.0f} x faster")
    print(f"  with groups made from uids       {labelled * 1e3:7.2f} ms  {verl / labelled:7.0f} x faster")
    print(f"  with every check and diagnostic  {whole * 1e3:7.2f} ms  {verl / whole:7.0f} x faster")
    print(f"kernel against one pass by hand: {hand * 1e3:.2f} ms, {kernel / hand:.2f} x its time")


def end_to_end(rewards: Tensor, mask: Tensor, index: np.ndarray) -> None:
    verl = seconds(lambda: compute_grpo_outcome_advantage(rewards, mask, index), 1)
    ours = seconds(lambda: stock("agent_grpo")(rewards, mask, None, index), 5)
    print(f"end to end, {tuple(mask.shape)}: verl {verl * 1e3:.0f} ms, ours {ours * 1e3:.0f} ms, {verl / ours:.1f} x")


def growth(most: int) -> None:
    first = None
    for count in (most // 100, most // 10, most):
        rows = Rows.draw(count)
        groups = rows.record().partition("task", "agent")
        kernel = seconds(lambda rows=rows, groups=groups: normalise(rows.scores, groups, OPTIONS), 5) / count
        whole = seconds(lambda rows=rows: compute_advantages("agent_grpo", rows.record()), 3) / count
        first = first or (kernel, whole)
        print(
            f"{count:9d} rows: kernel {kernel * 1e9:5.0f} ns per row ({kernel / first[0]:.2f} x the first), "
            f"with checks and diagnostics {whole * 1e9:5.0f} ns per row ({whole / first[1]:.2f} x)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    torch.set_num_threads(1)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--estimators", action="store_true", help="only the comparison of estimators")
    arguments = parser.parse_args()
    if arguments.estimators:
        estimators(arguments.most)
        return
    torch.manual_seed(0)
    rows = Rows.draw(arguments.rows)
    mask = torch.ones(arguments.rows, arguments.tokens, dtype=torch.long)
    rewards = torch.zeros(arguments.rows, arguments.tokens)
    rewards[:, -1] = rows.scores
    memory(rewards, mask, rows.uid)
    statistics(rows)
    end_to_end(rewards, mask, rows.uid)
    growth(arguments.most)
    estimators(arguments.most)


if __name__ == "__main__":
    main()
