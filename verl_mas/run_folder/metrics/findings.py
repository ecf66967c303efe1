"""Findings: problems of a run that show in the metrics of a few steps. The log and the reports show findings.

The metrics have the names under which the trainer logs them. A value of None (null in a metrics file) counts as NaN.
"""

import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from verl_mas.errors import FaultKind
from verl_mas.run_folder.metrics.names import AGENT, POLICY, agent, key_of_policy, names_in, policy, session
from verl_mas.run_folder.metrics.trends import EVERYONE, Metrics, RunFinding, Trends, mean

# Steps of a window. With few tasks per step, one or two steps without a signal are normal and not a finding.
STEPS = 3
# Steps before a finding is repeated. With tasks that are too easy or too hard, the same finding comes and goes.
AGAIN = 100
SHARE = 1 - 1e-9  # two rounded shares with at least this sum count as 1
# A share of the signal below this value is a finding. At this value, the same progress needs four times the samples.
LITTLE = 0.25
MOST = 0.9  # least share of uniform groups for a finding
NO_ENTROPY = 0.01  # nats per token below which there is a finding; at this value, one token in a thousand varies
OLD, OLD_SHARE = 4, 0.5  # age in updates from which a row is old, and share of old rows above which there is a finding
LATE = 0.5  # seconds of blocking above which there is a finding; an act of a small model takes about as long
CUT = 0.5  # least share of cut replies for a finding
ERRORS = 0.5  # least share of failed tool calls for a finding
# Metrics that exist only in steps in which old log-probs are computed (`mas.old_log_probs_every`).
_NOW_AND_THEN = re.compile(r".*/log_probs/\w+|(.*/)?actor/entropy")


def findings(steps: Sequence[Metrics], agents: Collection[str] | None = None) -> list[RunFinding]:
    """Return the findings that hold in each of these steps. `agents`: the trained agents; None: all agents."""
    window = Window(steps)
    trained = [name for name in window.names(AGENT, "advantage/zero") if agents is None or name in agents]
    return [
        *_without_advantage(window, trained),
        *_of_agents(window, trained),
        *_malformed(window),
        *_cut(window),
        *_failing_tools(window),
        *_disagreeing(window),
        *_of_policies(window),
        *_stale(window),
        *_dropping(window),
        *_blocked(window),
    ]


def held(before: Metrics, step: Metrics) -> Metrics:
    """Fill in metrics that are not measured in every step with the values of the previous step."""
    return {**{key: value for key, value in before.items() if _NOW_AND_THEN.fullmatch(key)}, **step}


class Findings:
    """The findings of a run while it trains. A finding is returned when it begins to hold, and at most once in `again`
    steps."""

    def __init__(self, agents: Collection[str] | None = None, again: int = AGAIN):
        self._agents, self._again = agents, again
        self._window: deque[Metrics] = deque(maxlen=STEPS)
        self._step = 0
        self._trends = Trends()
        self._returned: dict[tuple[str, str], int] = {}

    def add(self, metrics: Metrics) -> list[RunFinding]:
        """Add a step. Return the findings that hold now and were not returned in the last `again` steps."""
        self._step += 1
        self._window.append(held(self._window[-1] if self._window else {}, metrics))
        full = len(self._window) == self._window.maxlen
        found = findings(list(self._window), self._agents) if full else []
        found += self._trends.add(self._window[-1])
        never = -self._again
        due = [one for one in found if self._step - self._returned.get((one.kind, one.name), never) >= self._again]
        self._returned.update({(one.kind, one.name): self._step for one in due})
        return due


class Window:
    def __init__(self, steps: Sequence[Metrics]):
        self.steps = steps

    def names(self, kind: str, key: str) -> list[str]:
        """List the agents or policies that have this metric in every step."""
        series = self.of_agent if kind == AGENT else self.of_policy
        return [name for name in names_in(self.steps[-1], kind, key) if series(name, key)]

    def of_agent(self, name: str, key: str) -> list[float]:
        """Return an agent's metric, step by step; empty if it is missing in a step."""
        return self._series([agent(name, key)] * len(self.steps))

    def of_policy(self, name: str, key: str) -> list[float]:
        return self._series([key_of_policy(step, name, key) for step in self.steps])

    def _series(self, keys: Sequence[str]) -> list[float]:
        if not all(key in step for key, step in zip(keys, self.steps, strict=True)):
            return []
        values = (step[key] for key, step in zip(keys, self.steps, strict=True))
        return [math.nan if value is None else float(value) for value in values]

    def total(self, key: str) -> float:
        return sum(step.get(session(key)) or 0.0 for step in self.steps)

    @property
    def span(self) -> str:
        return f"for {len(self.steps)} steps"


def _always(series: Sequence[float], value: float) -> bool:
    return bool(series) and all(one == value for one in series)


def _without_advantage(window: Window, trained: Sequence[str]) -> Iterator[RunFinding]:
    zero = [name for name in trained if _always(window.of_agent(name, "advantage/zero"), 1.0)]
    if zero and len(zero) == len(trained):
        causes = dict.fromkeys(_why_without_advantage(window, name) for name in zero)
        text = f"no row of any agent has had an advantage {window.span}, so nothing is learned: {'; '.join(causes)}"
        yield RunFinding("no_advantage", EVERYONE, text)
        return
    for name in zero:
        text = f"no row of agent {name} has had an advantage {window.span}, so it learns nothing"
        yield RunFinding("no_advantage", name, f"{text}: {_why_without_advantage(window, name)}")


def _why_without_advantage(window: Window, name: str) -> str:
    single, uniform = (window.of_agent(name, f"group/{key}") for key in ("groups_of_one", "groups_uniform"))
    if single and all(share == 1 for share in single):
        return (
            "each group has one row, and there is nothing to compare it with. Raise rollout.n, or choose an estimator "
            "that compares more rows"
        )
    if single and uniform and all(one + same >= SHARE for one, same in zip(single, uniform, strict=True)):
        score = mean(window.of_agent(name, "reward/score"))
        return (
            f"all rows of a group have the same score (mean {score:.3g}). The tasks are too hard or too easy, or the "
            "reward does not depend on the replies"
        )
    return f"its groups differ in score; look at {agent(name, 'group/*')} and {agent(name, 'reward/*')}"


def _of_agents(window: Window, trained: Sequence[str]) -> Iterator[RunFinding]:
    for name in trained:
        # If the baseline is the mean of the whole team, an agent's advantages may consist mostly of one constant.
        shares = window.of_agent(name, "group/signal_share")
        means, deviations = (window.of_agent(name, f"advantage/{key}") for key in ("mean", "std"))
        constant = means and all(abs(mean) > std for mean, std in zip(means, deviations, strict=True))
        if shares and constant and all(share < LITTLE for share in shares):
            share = mean(shares)
            text = (
                f"the advantages of agent {name} have mostly had one sign {window.span}: its mean score is far from "
                f"the team's, and {share:.2f} of the signal is left, so it needs {1 / share:.0f} times the samples. "
                "Choose an estimator that compares an agent with itself, such as agent_grpo"
            )
            yield RunFinding("little_signal", name, text)
        shares = window.of_agent(name, "group/groups_uniform")
        if not shares or min(shares) < MOST or _always(window.of_agent(name, "advantage/zero"), 1.0):
            continue
        text = (
            f"{mean(shares):.0%} of the groups of agent {name} have had equal scores {window.span} (mean score "
            f"{mean(window.of_agent(name, 'reward/score')):.3g}), so most of its samples teach nothing. Unless it has "
            "learned the tasks: choose harder or easier ones, raise rollout.n, or let other tasks take their place "
            "with mas.filter.drop=uniform and mas.filter.refill=true"
        )
        yield RunFinding("uniform", name, text)


def _malformed(window: Window) -> Iterator[RunFinding]:
    for name in window.names(AGENT, "malformed"):
        if not _always(window.of_agent(name, "malformed"), 1.0):
            continue
        mean, longest = (window.of_agent(name, f"length/{key}") for key in ("response", "response_longest"))
        if mean and mean == longest:
            cause = f"all replies have {longest[-1]:g} tokens, so they are probably cut. Raise the length of a response"
        else:
            cause = "the prompt may not ask for the format, or the model cannot follow it. Read a session record"
        yield RunFinding("malformed", name, f"every reply of agent {name} has been malformed {window.span}: {cause}")


def _cut(window: Window) -> Iterator[RunFinding]:
    for name in window.names(AGENT, "cut"):
        shares = window.of_agent(name, "cut")
        if min(shares) >= CUT and not _always(window.of_agent(name, "malformed"), 1.0):
            text = (
                f"{mean(shares):.0%} of the replies of agent {name} have ended at the limit {window.span}, before "
                "their end. Raise data.max_response_length or the agent's sampling.max_tokens, or turn thinking off "
                "(chat_template_kwargs={enable_thinking: false})"
            )
            yield RunFinding("cut", name, text)


def _failing_tools(window: Window) -> Iterator[RunFinding]:
    for name in window.names(AGENT, "tool_errors"):
        shares = window.of_agent(name, "tool_errors")
        if min(shares) >= ERRORS:
            text = (
                f"{mean(shares):.0%} of the tool calls of agent {name} have failed {window.span}. Read the errors in a "
                "session record: wrong names or arguments of tools (say in the prompt which there are), or a server "
                "that does not answer"
            )
            yield RunFinding("failing_tools", name, text)


def _disagreeing(window: Window) -> Iterator[RunFinding]:
    for name in window.names(AGENT, "log_probs/mean"):
        means, limits = (window.of_agent(name, f"log_probs/{key}") for key in ("mean", "limit"))
        if all(mean > limit for mean, limit in zip(means, limits, strict=True)):
            text = (
                f"engine and trainer are {mean(means):.2g} apart about the log-prob of a token of agent {name} "
                f"{window.span}, and rounding explains {limits[-1]:g}: what is trained on is not what was sampled. "
                "Compare the temperature and the dtype of both, and whether the engine has the trainer's weights"
            )
            yield RunFinding("disagreeing", name, text)


def _of_policies(window: Window) -> Iterator[RunFinding]:
    for name in window.names(POLICY, "updated"):
        if cause := _why_unmoved(window, name):
            yield RunFinding("unmoved", name, f"policy {name} has not changed {window.span}: {cause}")
        values = window.of_policy(name, "actor/entropy")
        if values and all(0 <= value < NO_ENTROPY for value in values):
            text = (
                f"the entropy of policy {name} has been {mean(values):.2g} {window.span}: it writes the same reply to "
                "a prompt again and again, so groups have nothing to compare. If success is not high enough yet, "
                "resume from an earlier checkpoint with a smaller optim.lr, an entropy_coeff or a higher temperature"
            )
            yield RunFinding("no_entropy", name, text)


def _why_unmoved(window: Window, name: str) -> str | None:
    if _always(window.of_policy(name, "rows/real"), 0):
        return "it has no rows. Its agents do not act, or every session in which they act, or every task, is dropped"
    norms = window.of_policy(name, "actor/grad_norm")
    if _always(norms, 0.0):
        return "its gradient is 0. No row has an advantage, or every token of the responses is masked or clipped"
    if norms and not any(map(math.isfinite, norms)):
        return "its gradient overflows in fp16, so each optimiser step is skipped. Train in bf16 or fp32"
    if _always(window.of_policy(name, "actor/lr"), 0.0):
        return "its learning rate is 0. Look at actor.optim.lr and at the schedule"
    return None


def _stale(window: Window) -> Iterator[RunFinding]:
    """Find policies that train on too many stale rows in an asynchronous mode."""
    for name in window.names(POLICY, "staleness/mean"):
        key = re.compile(re.escape(policy(name, "staleness/")) + r"(\d+)/rows")
        shares = [
            [step[m[0]] or 0.0 for m in map(key.fullmatch, step) if m and int(m[1]) >= OLD] for step in window.steps
        ]
        old = [sum(of_step) for of_step in shares]
        if min(old) > OLD_SHARE:
            text = (
                f"{mean(old):.0%} of the rows of policy {name} were sampled {OLD} or more updates before they were "
                f"trained on {window.span}. The engines are behind: lower num_warmup_batches or the off-policy "
                "threshold, give the engines more devices, or set algorithm.rollout_correction"
            )
            yield RunFinding("stale", name, text)


_READ = "Read the faults in the session records"
_UNANSWERED = {
    FaultKind.REFUSED: "An engine, an endpoint or a retriever does not serve requests: see whether its server runs",
    FaultKind.TIMEOUT: "An engine, or the reward function, did not answer in time",
    FaultKind.SESSION_TIMEOUT: "Sessions do not end: look for a tool or a world that waits or computes without end",
}


def _dropping(window: Window) -> Iterator[RunFinding]:
    if not all((step.get(session("dropped")) or 0) > 0 for step in window.steps):
        return
    kinds = {kind.value: window.total(f"faults/{kind.value}") for kind in FaultKind}
    kind = max(kinds, key=lambda name: kinds[name])
    advice = ". ".join(filter(None, (_UNANSWERED.get(FaultKind(kind)), _READ)))
    text = (
        f"sessions have been dropped in every step {window.span}, {window.total('dropped'):g} of "
        f"{window.total('count'):g}: most faults are of the kind {kind}. {advice}"
    )
    yield RunFinding("dropping", EVERYONE, text)


def _blocked(window: Window) -> Iterator[RunFinding]:
    lags = [step.get(session("loop_lag")) or 0.0 for step in window.steps]
    if min(lags) > LATE:
        text = (
            f"the event loop of a rollout worker has been blocked for up to {max(lags):.1f} s {window.span}, in which "
            "none of its sessions goes on. In the workflow, its tools and the reward function use `await`, or "
            "`asyncio.to_thread` for what blocks; or raise rollout.agent.num_workers"
        )
        yield RunFinding("blocked", EVERYONE, text)
