"""Counts of the sessions of agent-loop workers, and the metrics that are computed from these counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import TypeVar

import numpy as np

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import FaultKind, SessionFault, SessionsFailed
from verl_mas.rollout.busy import Span, total
from verl_mas.run_folder.metrics.names import agent as of_agent
from verl_mas.run_folder.metrics.names import policy as of_policy
from verl_mas.verl_.types import Fields
from verl_mas.workflow.session import SessionResult


@dataclass(frozen=True)
class SessionCounts:
    """Counts of any number of sessions. Adding two objects gives the counts of all their sessions."""

    sessions: int = 0
    acts: int = 0
    probe_acts: int = 0  # acts that continue a candidate only to score it; they are not in `acts`
    probe_tokens: int = 0
    generated_tokens: int = 0  # tokens that were sampled in all acts, also in probes
    trainable_tokens: int = 0  # tokens that were sampled in acts that are trained on
    seconds: float = 0.0  # duration of the sessions
    # The part of `seconds` in which at least one act was running. In the rest, the sessions waited for worlds, graders
    # or the code of the workflow.
    act_seconds: float = 0.0
    lag: float = 0.0  # the longest time for which something blocked the event loop of a worker
    failed: Mapping[str, int] = field(default_factory=dict)  # failed sessions by the kind of their last fault
    retried: int = 0  # sessions that succeeded after an attempt that failed
    tasks: int = 0
    groups_given_up: int = 0  # tasks that were dropped with all of their sessions
    faults: Mapping[str, int] = field(default_factory=dict)  # faults of all attempts by kind
    first_faults: Mapping[str, str] = field(default_factory=dict)  # the first fault of each kind, with its traceback
    tool_calls: Mapping[str, int] = field(default_factory=dict)  # by agent
    tool_errors: Mapping[str, int] = field(default_factory=dict)  # tool calls that returned an error, by agent
    replies: Mapping[str, int] = field(default_factory=dict)  # by agent
    cut: Mapping[str, int] = field(default_factory=dict)  # replies that were cut at the token limit, by agent
    # Number of chat-template marks that the texts of prompts contained, by agent. Agents without such marks are not in
    # this mapping.
    forged_tokens: Mapping[str, int] = field(default_factory=dict)
    infos: Mapping[str, float] = field(default_factory=dict)  # sums of the numbers in `session.info`, by name
    reports: Mapping[str, int] = field(default_factory=dict)  # how many sessions reported each number, by name
    record_bytes: int = 0  # size of the session records on disk
    without_space: int = 0  # sessions that were not recorded because mas.trajectories.max_gib was reached
    # The spans of time in which at least one request was at a policy's engines, by policy.
    busy: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)  # summed durations of a policy's requests, by policy

    @classmethod
    def of(cls, finished: SessionResult) -> SessionCounts:
        session, failed = finished.session, finished.failed
        numbers = {} if failed else {k: v for k, v in session.info.items() if isinstance(v, int | float | np.number)}
        played = [reply for reply in session.replies if not reply.probe]
        probes = [reply for reply in session.replies if reply.probe]
        calls = [(reply.agent, call) for reply in played for call in reply.tool_calls]
        probe_tokens = sum(reply.generation.sampled for reply in probes)
        return cls(
            sessions=1,
            acts=len(played),
            probe_acts=len(probes),
            probe_tokens=probe_tokens,
            generated_tokens=sum(reply.generation.sampled for reply in played) + probe_tokens,
            trainable_tokens=sum(reply.generation.sampled for reply in session.replies if reply.trainable),
            seconds=session.seconds,
            act_seconds=total((act.started, act.started + act.seconds) for act in session.replies),
            failed={finished.faults[-1].kind.value: 1} if failed else {},
            retried=int(bool(finished.faults) and not failed),
            faults=Counter(fault.kind.value for fault in finished.faults),
            # The faults are in reverse order, so that the first fault of a kind replaces the later faults of that kind.
            first_faults={fault.kind.value: described(finished, fault) for fault in reversed(finished.faults)},
            tool_calls=Counter(agent for agent, _ in calls),
            tool_errors=Counter(agent for agent, call in calls if call.error is not None),
            replies=Counter(reply.agent for reply in played),
            cut=Counter(reply.agent for reply in played if reply.generation.stop_reason == "length"),
            forged_tokens=sum((Counter({one.agent: one.generation.forged_tokens}) for one in played), Counter()),
            infos={name: float(value) for name, value in numbers.items()},
            reports=dict.fromkeys(numbers, 1),
        )

    def __add__(self, other: SessionCounts) -> SessionCounts:
        theirs = vars(other)
        both: Fields = {
            name: _add(mine, theirs[name]) if isinstance(mine, Mapping) else mine + theirs[name]
            for name, mine in vars(self).items()
        }
        first_faults = {**other.first_faults, **self.first_faults}
        return SessionCounts(**{**both, "first_faults": first_faults, "lag": max(self.lag, other.lag)})

    @property
    def dropped(self) -> int:
        return sum(self.failed.values())

    @property
    def timed_out(self) -> int:
        return sum(self.failed.get(kind.value, 0) for kind in FaultKind if kind.timed_out)

    @property
    def dropped_share(self) -> float:
        """The share of sessions without rows. With `mas.faults.then=fail_group`, a failed session drops all sessions of
        its task, so this is the share of dropped tasks."""
        if self.groups_given_up:
            return self.groups_given_up / self.tasks
        return self.dropped / max(1, self.sessions)

    def check(self, limit: float, where: str) -> None:
        """Raise SessionsFailed if all sessions failed, or if the dropped share is above `limit`, which is
        `mas.faults.max_dropped_share`.

        `where`: the name of the step in the error, such as `step 3` or `the validation at step 3`.
        """
        if not self.dropped or (self.dropped_share <= limit and self.dropped_share < 1):
            return
        # `from None` hides verl's own error about a step without rows, whose advice to refill the step does not help.
        raise SessionsFailed(
            f"{self.summary(where)}\n"
            f"{self.first_causes()}\n"
            f"  rule: the run ends when a step or a validation loses more than mas.faults.max_dropped_share={limit:g} "
            "of its sessions\n"
            "  fix:  remove the cause; the records of the sessions (mas.trajectories) have the fault of each"
        ) from None

    def summary(self, where: str) -> str:
        """Return a line that says how many sessions failed, by kind of fault."""
        share = f"all {self.sessions}" if self.dropped == self.sessions else f"{self.dropped} of {self.sessions}"
        tasks = f"; {self.groups_given_up} of {self.tasks} tasks dropped" if self.groups_given_up else ""
        return f"{share} sessions of {where} failed: {self._kinds()}{tasks}"

    def check_timeouts(self, faults: FaultSpec, where: str, at_once: int) -> None:
        """Raise SessionsFailed if the share of sessions that timed out is above `mas.faults.max_timeout_share`.

        `where`: as in `check`. `at_once`: the largest number of concurrent sessions, for the fix in the error.
        """
        limit, seconds = faults.max_timeout_share, self.seconds / max(1, self.sessions)
        if self.timed_out <= limit * self.sessions:
            return
        raise SessionsFailed(
            f"{self.timed_out} of {self.sessions} sessions of {where} timed out; failed: {self._kinds()}\n"
            f"{self.first_causes()}\n"
            f"  seen: a session took {seconds:.0f} s on average, and at most {at_once} ran at once; the time of an act "
            "includes its wait in the queue of the engine\n"
            f"  rule: at most mas.faults.max_timeout_share={limit:g} of a validation's sessions time out: they count "
            "as 0, and the score is then too low\n"
            f"  fix:  set mas.max_sessions below {at_once}, so that engines are less busy, raise "
            f"mas.faults.act_timeout_s={faults.act_timeout_s:g} or mas.faults.session_timeout_s="
            f"{faults.session_timeout_s:g}, or lower data.val_batch_size"
        )

    def _kinds(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in Counter(self.failed).most_common())

    def first_causes(self) -> str:
        """Return the first fault of each kind that made sessions fail, with its traceback."""
        kinds = [kind for kind, _ in Counter(self.failed).most_common()]
        return "\n".join(indent(f"the first {kind}: {self.first_faults[kind]}", "  ") for kind in kinds)

    def metrics(self) -> dict[str, float]:
        sessions = max(1, self.sessions)
        if_not_zero = {
            "session/probe_acts": self.probe_acts,
            "session/probe_tokens": self.probe_tokens,
            "session/loop_lag": self.lag,
            "session/groups_given_up": self.groups_given_up,
            "session/record_mib": self.record_bytes / 2**20,
        }
        return {
            **{f"session/{name}/mean": value / self.reports[name] for name, value in self.infos.items()},
            "session/count": self.sessions,
            "session/acts/mean": self.acts / sessions,
            "session/generated_tokens": self.generated_tokens,
            "session/seconds/mean": self.seconds / sessions,
            "session/seconds/acts": self.act_seconds / sessions,
            "session/dropped": self.dropped,
            "session/retried": self.retried,
            **{name: value for name, value in if_not_zero.items() if value},
            **{
                of_policy(name, "requests"): time / total(self.busy[name])
                for name, time in self.requests.items()
                if time
            },
            **{of_agent(name, "cut"): self.cut.get(name, 0) / n for name, n in self.replies.items()},
            **{of_agent(name, "tool_calls"): n / sessions for name, n in self.tool_calls.items()},
            **{of_agent(name, "tool_errors"): self.tool_errors.get(name, 0) / n for name, n in self.tool_calls.items()},
            **{of_agent(name, "forged_tokens"): n / sessions for name, n in self.forged_tokens.items()},
            **{f"session/faults/{kind}": count for kind, count in self.faults.items()},
        }


def described(finished: SessionResult, fault: SessionFault) -> str:
    """Return a text with the session of a fault, its cause, its place and its traceback."""
    return f"session {finished.session.task.key}: {fault}\n{indent(fault.traceback, '  ')}"


V = TypeVar("V", int, float, tuple[Span, ...])


def _add(mine: Mapping[str, V], theirs: Mapping[str, V]) -> dict[str, V]:
    both = {name: mine[name] + theirs[name] for name in mine if name in theirs}
    return {**mine, **theirs, **both}
