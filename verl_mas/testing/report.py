"""Results of the cases of check_workflow, and their output."""

import contextlib
import re
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent, shorten

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.workflow.reply import Outcome
from verl_mas.workflow.rewards import needs_score
from verl_mas.workflow.session import Session, SessionResult

PACKAGE = Path(__file__).parents[1]
# Matches files that run a workflow, and generated code, but not the shipped workflows.
MACHINERY = re.compile(
    rf"{PACKAGE}/(workflow/|workflows/folded|gateway/|testing/|util/|errors|config/registry)|{Path(contextlib.__file__).parent}/(?!.*-packages/)|<string>"
)
# Part of Python's message for a common mistake -> its fix.
FIXES = {
    "'await' expression": "only acts and branches are awaited: `await team.solver.act(...)`",
    "could not convert": "a model may write any text: read it with a codec, or catch the exception",
    "JSONDecodeError": "a model may write any text: read it with JsonBlock(), or catch the exception",
    "Malformed": "a reply that could not be read has no value: test it first, `if value:`",
    "coroutine": "write `await` before the call",
    "Future": "write `await` before asyncio.gather(...)",
    "'Agent' object is not callable": "write `await team.solver.act(...)`",
    "Reply": "a reply is an object: its text is reply.text",
    "'Task' object": "a task is an object: task.question, task.ground_truth, task.extra_info['name']",
    "'dict' object has no attribute": "a field of a dict is read as task.extra_info['name']",
    "required positional argument: 'text'": "a codec is an object: reply.parse(Boxed())",
    "no attribute 'parse'": "give a codec: reply.parse(Boxed()), reply.parse(Tag('answer'))",
    "3 were given": "write `async def run(self, task, team)`",
    "cannot assign to field": "a Task and an Outcome do not change: make a new one",
    "KeyError": "a field of the data needs a row of them: verl-mas try --row FILE, or check_workflow(task=Task(...))",
    "NoneType": "if it is the ground truth: verl-mas try --truth TEXT, or check_workflow(task=Task(...))",
}
PLACE = re.compile(r" \([^()]*:\d+\)$")
ACCURACY = ("accuracy", "correct", "success", "solved")


@dataclass(frozen=True)
class CaseResult:
    """The result of one case. Its `problems` would break or spoil training."""

    name: str
    problems: Sequence[str]
    acts: int = 0
    malformed: int = 0
    faults: Sequence[str] = ()
    answer: str | None = None
    tool_calls: int = 0
    tool_errors: Sequence[str] = ()  # errors of tool calls, without duplicates
    # The scores of the rows by agent; without the team's part if verl's reward function scores the answer.
    rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scored_by_verl: bool = False
    verl_score: str = ""  # the score, or the reason why there is none; empty without a dataset row
    penalties: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, object] = field(default_factory=dict)

    def shown(self, problems: Mapping[str, int], faults: Sequence[str]) -> str:
        """Format the case with its faults and its problems, each with the number of cases that have the problem."""
        calls = f" {self.tool_calls} tool calls," if self.tool_calls else ""
        summary = f"{self.acts} acts,{calls} {self.malformed} malformed, answer {self.answer!r:.40}"
        rewards = ", ".join(f"{agent} {_numbers(scores)}" for agent, scores in self.rewards.items())
        if self.scored_by_verl:
            score = f": {self.verl_score}" if self.verl_score else ""
            rewards += f"; verl's reward function scores the answer{score}"
        penalties = ", ".join(f"{agent} {penalty:g}" for agent, penalty in self.penalties.items() if penalty)
        details = {"rewards": rewards, "penalties": penalties, "info": str(dict(self.info)) if self.info else ""}
        lines = [f"{name}: {text}" for name, text in details.items() if text]
        lines += [f"a tool call: {shorten(error, 200, placeholder=' ...')}" for error in self.tool_errors]
        for problem, count in problems.items():
            also = f"also in {count - 1} other case{'s' if count > 2 else ''}"
            lines += [problem, *([also] if count > 1 else [])]
        text = indent("\n".join(dict.fromkeys([*lines, *faults])), " " * 7)
        return f"{'FAIL' if self.problems else 'ok  '} {self.name}: {summary}\n{text}".rstrip()


@dataclass(frozen=True)
class Report:
    """The results of all cases. `notes` may describe intended behaviour, so the check passes in spite of notes."""

    cases: Sequence[CaseResult] = field(default_factory=list)
    notes: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        return not any(case.problems for case in self.cases)

    @property
    def problems(self) -> list[str]:
        return [f"{case.name}: {problem}" for case in self.cases for problem in case.problems]

    @property
    def causes(self) -> Mapping[str, int]:
        """The first problem of each cause, and the number of cases that have this cause."""
        found = defaultdict[str, dict[str, str]](dict)
        for case in self.cases:
            for problem in case.problems:
                found[_cause(problem)].setdefault(case.name, problem)
        return {next(iter(problems.values())): len(problems) for problems in found.values()}

    @property
    def verdict(self) -> str:
        found, word = (self.notes, "note") if self.ok else (self.causes, "problem")
        count = f"{len(found)} {word}{'s' if len(found) > 1 else ''}"
        return f"refused: {count}" if not self.ok else f"accepted with {count}" if found else "accepted"

    def __str__(self) -> str:
        left, lines = dict(self.causes), list[str]()
        for case in self.cases:
            # Skip a case if all its problems were printed before.
            new = {problem: left.pop(problem) for problem in case.problems if problem in left}
            if new or not case.problems:
                faults = [fault for fault in case.faults if _cause(fault) not in map(_cause, self.causes)]
                lines.append(case.shown(new, faults))
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes if self.ok)])


def _cause(problem: str) -> str:
    """Return the key that groups a problem across cases: place, rule and fix, without the value."""
    first, *rest = problem.splitlines()
    place = PLACE.search(first)
    return "\n".join([place.group() if place else "", *rest]) if place or rest else first


def case_of(name: str, result: SessionResult, problems: Sequence[str]) -> CaseResult:
    session = result.session
    rewards, penalties = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for row in session.rows() if isinstance(session.outcome, Outcome) else ():
        rewards[row.first.agent].append(row.reward.score)
        penalties[row.first.agent] += row.reward.penalty
    calls = [call for reply in session.replies for call in reply.tool_calls]
    return CaseResult(
        name,
        problems,
        acts=len(session.replies),
        tool_calls=len(calls),
        tool_errors=list(dict.fromkeys(call.error for call in calls if call.error is not None)),
        malformed=sum(reply.malformed is not None for reply in session.replies),
        faults=[described(fault) for fault in result.faults],
        answer=str(session.answer) if session.answer is not None else None,
        rewards=dict(rewards),
        scored_by_verl=bool(rewards) and needs_score(session.outcome, session.replies),
        penalties=dict(penalties),
        info=session.info,
    )


def wrong_end(session: Session) -> Iterator[str]:
    """Find problems of a returned Outcome."""
    outcome = session.outcome
    if not isinstance(outcome, Outcome):
        return
    if not session.replies:
        yield "no agent acted; is an `await` missing before an act, or does a program ask another address?"
    if needs_score(outcome, session.replies) and outcome.answer is None:
        yield "the Outcome has neither an answer nor a reward, so the session cannot be scored and is dropped"


def of_good(notes: list[str], given: bool, result: SessionResult) -> Iterator[str]:
    """Find problems of the case with good replies. If there are none, extend `notes`. Unreadable replies are
    problems if the user gave the replies (`given`); otherwise they are notes."""
    unreadable, problems = list(_unreadable(result.session)), list(_unrewarded(result.session))
    (problems if given else notes).extend(unreadable)
    notes += [] if problems else _notes(result.session)
    yield from problems


def _unreadable(session: Session) -> Iterator[str]:
    """Find good replies that the team could not read. The case may not have tested the acts after such a reply."""
    for reply in session.replies:
        if reply.malformed is not None:
            yield (
                f"the good reply {reply.text!r:.40} of {reply.agent} is malformed: {reply.malformed}\n"
                "  rule: the team can read the good replies, so that all of it is tried\n"
                f"  fix:  verl-mas try --reply '{reply.agent}: TEXT', or check_workflow(Team, {{{reply.agent!r}: ...}})"
            )


def _unrewarded(session: Session) -> Iterator[str]:
    """Find agents whose rows always have reward 0, because only other acts have rewards and nothing scores the team."""
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


def empty_answer(session: Session) -> Iterator[str]:
    """Yield a note if the answer is empty and the last reply calls a tool, as when a program returns nothing."""
    outcome, last = session.outcome, next(reversed(session.replies), None)
    if last is None or not last.tool_calls or not isinstance(outcome, Outcome):
        return
    if needs_score(outcome, session.replies) and outcome.answer is not None and not str(outcome.answer).strip():
        called = ", ".join(call.name for call in last.tool_calls)
        yield f"the answer is empty, as the last reply is a call of {called}: return the answer, or the reward"


def _notes(session: Session) -> Iterator[str]:
    yield from empty_answer(session)
    rewarded = defaultdict[str, set[bool]](set)
    for row in [row for row in session.rows() if not row.first.probe]:
        rewarded[row.first.agent].add(any(reply.reward is not None for reply in row.replies))
    if some := [agent for agent, both in rewarded.items() if len(both) > 1]:
        yield (
            f"some acts of {' and '.join(some)} have a reward of their own; the others have 0, and are compared with "
            "them: set reply.reward on each, or return Outcome(reward=...)"
        )
    for name in session.info:
        if name.lower() in ACCURACY and "acc" not in session.info:
            yield f"info has {name!r}: validation counts `acc` as success, and {name!r} is one more number"


def described(fault: SessionFault) -> str:
    """Describe a fault with the line of the workflow that raised it, and a fix for a Python exception."""
    first, *rest = [line.strip()[:400] for line in str(fault).splitlines()]
    if fault.kind is FaultKind.WORKFLOW and fault.__cause__ is not None:
        stack = traceback.extract_tb(fault.__cause__.__traceback__)
        own = [frame for frame in stack if not MACHINERY.match(frame.filename)][-1:]
        fixes = [f"fix:  {fix}" for text, fix in FIXES.items() if text in first][:1]
        rest = rest or [*(frame.line or "" for frame in own), *fixes]
        first += "".join(f" ({frame.filename}:{frame.lineno})" for frame in own)
    return "\n  ".join(filter(None, [first, *rest]))


def _numbers(scores: Sequence[float]) -> str:
    return "/".join(f"{score:g}" for score in scores)
