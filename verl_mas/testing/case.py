"""What `check_workflow` reports: its cases, and what is wrong with how a session ended."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.workflow.outcome import Outcome
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.session import Session, SessionResult

PACKAGE = Path(__file__).parents[1]
# What runs the workflow; the shipped workflows are in the package, too.
OURS = (f"{PACKAGE}/workflow/", f"{PACKAGE}/testing/", f"{PACKAGE}/errors.py", contextlib.__file__)


@dataclass(frozen=True)
class Case:
    """The result of one case; `problems` would break or spoil a training run."""

    name: str
    problems: Sequence[str]
    acts: int = 0
    malformed: int = 0
    faults: Sequence[str] = ()
    answer: str | None = None
    tool_calls: int = 0
    tool_errors: Sequence[str] = ()
    """Each error of a call once."""

    rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The score of each row by agent; without the team's part where verl's reward function scores the answer."""

    scored_by_verl: bool = False
    penalties: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, object] = field(default_factory=dict)
    traces: Mapping[str, str] = field(default_factory=dict)
    """The traceback of each exception of the workflow, by type and place."""

    def __str__(self) -> str:
        return self.shown({})

    def shown(self, known: dict[str, str]) -> str:
        """`known` has the problems of earlier cases with the name of the first; those of this case are added."""
        calls = f" {self.tool_calls} tool calls," if self.tool_calls else ""
        summary = f"{self.acts} acts,{calls} {self.malformed} malformed, answer {self.answer!r:.40}"
        rewards = ", ".join(f"{agent} {_numbers(scores)}" for agent, scores in self.rewards.items())
        if self.scored_by_verl:
            rewards += "; and that of the answer, which verl's reward function gives"
        penalties = ", ".join(f"{agent} {penalty:g}" for agent, penalty in self.penalties.items() if penalty)
        details = {"rewards": rewards, "penalties": penalties, "info": str(dict(self.info)) if self.info else ""}
        lines = [f"{'ok  ' if not self.problems else 'FAIL'} {self.name}: {summary}"]
        lines += [f"       {name}: {text}" for name, text in details.items() if text]
        errors = [f"a tool call: {shorten(error, 200, placeholder=' ...')}" for error in self.tool_errors]
        firsts = [(problem, known.setdefault(problem, self.name)) for problem in (*self.problems, *self.faults)]
        problems = [problem if first == self.name else f"as in: {first}" for problem, first in firsts]
        return "\n".join([*lines, *(f"       {line}" for line in dict.fromkeys([*errors, *problems]))])


@dataclass(frozen=True)
class Report:
    cases: Sequence[Case] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(case.problems for case in self.cases)

    @property
    def problems(self) -> list[str]:
        return [f"{case.name}: {problem}" for case in self.cases for problem in case.problems]

    def __str__(self) -> str:
        # Reversed, so that the first case in which it was raised is shown.
        traces = {name: trace for case in reversed(self.cases) for name, trace in case.traces.items()}
        known: dict[str, str] = {}
        return "\n".join([*(case.shown(known) for case in self.cases), *traces.values()])


def case_of(name: str, result: SessionResult, problems: Sequence[str]) -> Case:
    session = result.session
    rewards, penalties = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for row in session.rows() if isinstance(session.outcome, Outcome) else ():
        rewards[row.first.agent].append(row.reward.score)
        penalties[row.first.agent] += row.reward.penalty
    calls = [call for reply in session.replies for call in reply.tool_calls]
    return Case(
        name,
        problems,
        acts=len(session.replies),
        tool_calls=len(calls),
        tool_errors=list(dict.fromkeys(call.error for call in calls if call.error is not None)),
        malformed=sum(reply.malformed is not None for reply in session.replies),
        faults=[_described(fault) for fault in result.faults],
        answer=str(session.answer) if session.answer is not None else None,
        rewards=dict(rewards),
        scored_by_verl=bool(rewards) and needs_score(session.outcome, session.replies),
        penalties=dict(penalties),
        info=session.info,
        traces={
            f"{type(fault.__cause__)} {place}": _trace(fault) for fault in result.faults if (place := _place(fault))
        },
    )


def wrong_end(session: Session) -> Iterator[str]:
    """What is wrong with an Outcome that was returned."""
    outcome = session.outcome
    if not isinstance(outcome, Outcome):
        return
    if not session.replies:
        yield "no agent acted; is an `await` missing before an act?"
    answer: object = outcome.answer
    if inspect.iscoroutine(answer):
        answer.close()
        yield f"the answer is the coroutine {answer.__qualname__}, as `await` is missing before it"
    elif not isinstance(answer, Reply | str | None):
        yield f"the answer is {answer!r:.40}; it must be a Reply, a text or None"
    if needs_score(outcome, session.replies) and answer is None:
        yield "the Outcome has neither an answer nor a reward, so the session cannot be scored and is dropped"


def unrewarded(result: SessionResult) -> Iterator[str]:
    """The agents whose rows always have reward 0: other acts have rewards of their own, so nothing scores the team."""
    session = result.session
    outcome = session.outcome
    if not isinstance(outcome, Outcome) or outcome.reward is not None or needs_score(outcome, session.replies):
        return
    if outcome.score_answer:
        return
    agents = {reply.agent for reply in session.replies}
    rewarded = {reply.agent for reply in session.replies if (reply.reward, reply.team_reward) != (None, None)}
    for agent in sorted(agents - rewarded):
        yield (
            f"the reward of {agent} is never set: other acts have rewards, so verl's reward function is not called; "
            "return Outcome(reward=...), or Outcome(answer=..., score_answer=True)"
        )


def _described(fault: SessionFault) -> str:
    place, text = _place(fault), shorten(str(fault), 200, placeholder=" ...")
    return f"{text} ({place})" if place else text


def _place(fault: SessionFault) -> str | None:
    """File and line in the workflow of an exception that it raised."""
    frames = _own_frames(fault)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _own_frames(fault: SessionFault) -> list[traceback.FrameSummary]:
    if fault.kind is not FaultKind.WORKFLOW or fault.__cause__ is None:
        return []
    frames = traceback.extract_tb(fault.__cause__.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(OURS)]


def _trace(fault: SessionFault) -> str:
    frames = "".join(traceback.format_list(_own_frames(fault))).rstrip()
    return f"{_described(fault)}\n{frames}"


def _numbers(scores: Sequence[float]) -> str:
    return "/".join(f"{score:g}" for score in scores)
