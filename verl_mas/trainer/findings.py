"""What the metrics of the last steps say is wrong with a run: pure functions, for the log and for reports.

The keys are those that the team trainer logs. A value that is not a number (null in a metrics file) counts as NaN.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from verl_mas.errors import FaultKind
from verl_mas.trainer.metrics import ROOT

Metrics: TypeAlias = Mapping[str, float | None]
# With few tasks per step, a step or two without any signal happen in sound runs.
STEPS = 3
# Where most tasks are too easy or too hard, the same finding comes and goes all the time.
AGAIN = 100
SHARE = 1 - 1e-9  # "all of them", for a sum of two rounded shares
LITTLE = 0.25  # of signal: four times the samples for the same progress
EVERYONE = "team"


@dataclass(frozen=True)
class Finding:
    """`kind` and `name` identify it from step to step; `text` has the likely cause."""

    kind: str
    name: str
    text: str


def findings(steps: Sequence[Metrics], agents: Collection[str] | None = None) -> list[Finding]:
    """What holds in every one of these steps. `agents`: those that are trained; None: all that acted."""
    window = Window(steps)
    trained = [name for name in window.names("advantage/zero") if agents is None or name in agents]
    return [
        *_without_advantage(window, trained),
        *_little_signal(window, trained),
        *_malformed(window),
        *_unmoved(window),
        *_dropping(window),
    ]


class Findings:
    """The findings of a run while it trains: each when it begins, and at most once in `again` steps."""

    def __init__(self, agents: Collection[str] | None = None, steps: int = STEPS, again: int = AGAIN):
        self._agents, self._again = agents, again
        self._window: deque[Metrics] = deque(maxlen=steps)
        self._step = 0
        self._returned: dict[tuple[str, str], int] = {}

    def add(self, metrics: Metrics) -> list[Finding]:
        """Those that hold now and have not been returned in the last `again` steps."""
        self._step += 1
        self._window.append(dict(metrics))
        full = len(self._window) == self._window.maxlen
        found = findings(list(self._window), self._agents) if full else []
        return [finding for finding in found if self._is_due(finding.kind, finding.name)]

    def _is_due(self, kind: str, name: str) -> bool:
        last = self._returned.get((kind, name))
        due = last is None or self._step - last >= self._again
        if due:
            self._returned[kind, name] = self._step
        return due


class Window:
    """The metrics of some steps, one after the other."""

    def __init__(self, steps: Sequence[Metrics]):
        self.steps = steps

    def names(self, key: str) -> list[str]:
        """The agents or policies that have this metric in every step."""
        parts = (metric.split("/", 2) for metric in self.steps[-1])
        return [part[1] for part in parts if part[0] == ROOT and part[2:] == [key] and self.series(part[1], key)]

    def series(self, name: str, key: str) -> list[float]:
        """The metric of an agent or policy, step by step; empty if a step has none."""
        full = f"{ROOT}/{name}/{key}"
        if not all(full in step for step in self.steps):
            return []
        values = (step[full] for step in self.steps)
        return [math.nan if value is None else float(value) for value in values]

    def always(self, name: str, key: str, value: float) -> bool:
        series = self.series(name, key)
        return bool(series) and all(one == value for one in series)

    def mean(self, name: str, key: str) -> float:
        series = self.series(name, key)
        return sum(series) / len(series) if series else math.nan

    def total(self, key: str) -> float:
        return sum(step.get(f"{ROOT}/{key}") or 0.0 for step in self.steps)

    @property
    def span(self) -> str:
        return f"for {len(self.steps)} steps"


def _without_advantage(window: Window, trained: Sequence[str]) -> Iterator[Finding]:
    zero = [name for name in trained if window.always(name, "advantage/zero", 1.0)]
    if zero and len(zero) == len(trained):
        causes = dict.fromkeys(_why_without_advantage(window, name) for name in zero)
        text = f"no row of any agent has had an advantage {window.span}, so nothing is learned: {'; '.join(causes)}"
        yield Finding("no_advantage", EVERYONE, text)
        return
    for name in zero:
        text = f"no row of agent {name} has had an advantage {window.span}, so it learns nothing"
        yield Finding("no_advantage", name, f"{text}: {_why_without_advantage(window, name)}")


def _why_without_advantage(window: Window, agent: str) -> str:
    single, uniform = (window.series(agent, f"group/{name}") for name in ("groups_of_one", "groups_uniform"))
    if single and all(share == 1 for share in single):
        return (
            "each group has one row, and there is nothing to compare it with. Raise rollout.n, or choose an estimator "
            "that compares more rows"
        )
    if single and uniform and all(one + same >= SHARE for one, same in zip(single, uniform, strict=True)):
        score = window.mean(agent, "reward/score")
        return (
            f"all rows of a group have the same score (mean {score:.3g}). The tasks are too hard or too easy, or the "
            "reward does not depend on the replies"
        )
    return f"its groups differ in score; look at {ROOT}/{agent}/group/* and {ROOT}/{agent}/reward/*"


def _little_signal(window: Window, trained: Sequence[str]) -> Iterator[Finding]:
    """An agent whose advantages are mostly one constant, as under a baseline for the whole team."""
    for name in trained:
        shares = window.series(name, "group/signal_share")
        means, deviations = (window.series(name, f"advantage/{key}") for key in ("mean", "std"))
        constant = means and all(abs(mean) > std for mean, std in zip(means, deviations, strict=True))
        if shares and constant and all(share < LITTLE for share in shares):
            share = window.mean(name, "group/signal_share")
            text = (
                f"the advantages of agent {name} have mostly had one sign {window.span}: its mean score is far from "
                f"the team's, and {share:.2f} of the signal is left, so it needs {1 / share:.0f} times the samples. "
                "Choose an estimator that compares an agent with itself, such as agent_grpo"
            )
            yield Finding("little_signal", name, text)


def _malformed(window: Window) -> Iterator[Finding]:
    for name in window.names("malformed"):
        if not window.always(name, "malformed", 1.0):
            continue
        mean, longest = (window.series(name, f"length/{key}") for key in ("response", "response_longest"))
        if mean and mean == longest:
            cause = f"all replies have {longest[-1]:g} tokens, so they are probably cut. Raise the length of a response"
        else:
            cause = "the prompt may not ask for the format, or the model cannot follow it. Read a session record"
        yield Finding("malformed", name, f"every reply of agent {name} has been malformed {window.span}: {cause}")


def _unmoved(window: Window) -> Iterator[Finding]:
    for name in window.names("updated"):
        cause = _why_unmoved(window, name)
        if cause:
            yield Finding("unmoved", name, f"policy {name} has not changed {window.span}: {cause}")


def _why_unmoved(window: Window, policy: str) -> str | None:
    if window.always(policy, "updated", 0):
        return "it has no rows. Its agents do not act, or every session in which they act, or every task, is dropped"
    if window.always(policy, "actor/grad_norm", 0.0):
        return "its gradient is 0. No row has an advantage, or every token of the responses is masked or clipped"
    norms = window.series(policy, "actor/grad_norm")
    if norms and not any(map(math.isfinite, norms)):
        return "its gradient overflows in fp16, so each optimiser step is skipped. Train in bf16 or fp32"
    if window.always(policy, "actor/lr", 0.0):
        return "its learning rate is 0. Look at actor.optim.lr and at the schedule"
    return None


def _dropping(window: Window) -> Iterator[Finding]:
    if not all((step.get(f"{ROOT}/session/dropped") or 0) > 0 for step in window.steps):
        return
    kinds = {kind.value: window.total(f"session/faults/{kind.value}") for kind in FaultKind}
    kind = max(kinds, key=lambda name: kinds[name])
    text = (
        f"sessions have been dropped in every step {window.span}, {window.total('session/dropped'):g} of "
        f"{window.total('session/count'):g}: most faults are of the kind {kind}. Read the faults in the session records"
    )
    yield Finding("dropping", EVERYONE, text)
