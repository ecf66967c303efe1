"""The reply of an act, with the data of the act for its training row and record, and the outcome of a session."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from verl_mas.config.registry import KnownNames, UnknownName, names_of
from verl_mas.errors import WorkflowError
from verl_mas.verl_.row import VERDICTS, Act
from verl_mas.workflow.client import Generation, Message, ToolCall, message_of
from verl_mas.workflow.codecs import Codec, Malformed

T = TypeVar("T")


def check_reward(name: str, value: object) -> None:
    """Raise WorkflowError for a reward that is not a finite number. The check runs when the reward is set, so that the
    value cannot reach an advantage or an average."""
    if value is None:
        return
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        fix = "set a number, also for a reply that could not be read, or None where there is none"
        raise WorkflowError(f"{name} is {value!r:.200}", rule="it is averaged, so it is a finite number", fix=fix)


@dataclass(eq=False, repr=False)
class Reply(KnownNames):
    """Result of an act: the `text`, which you `parse`, and the act's own `reward`, which you set.

    `team_reward` is the team reward of a candidate, if it differs from that of the session. `tool_calls` has the calls
    of the whole act, and `steps` all its messages: replies with calls, results of tools, and the last reply.
    """

    act: Act
    messages: Sequence[Message]
    generation: Generation
    among: int = 1  # number of candidates of the act
    trainable: bool = True
    # True for an act that only measures how a candidate ends. It is in records, but is neither stored for training nor
    # counted in metrics.
    probe: bool = False
    # Name of the path through the session (`Line`): empty for the main path,
    # `/<agent>/<instance>/<turn>/<candidate>/<number>` for a probe.
    line: str = ""
    reward: float | None = None
    team_reward: float | None = None
    committed: bool = True
    malformed: str | None = None  # why the reply could not be read; None if it is well-formed
    row: int = 0  # number of the act's row in the session; the acts of one conversation share a row
    started: float = 0.0
    seconds: float = 0.0
    parses: list[str] = field(default_factory=list)
    tool_calls: Sequence[ToolCall] = ()
    steps: Sequence[Message] = ()
    # State that tools stored during the act, which verl's reward function gets.
    tool_state: Mapping[str, object] = field(default_factory=dict)
    sampled: Sequence[int] = ()  # number of sampled tokens of each reply in `steps`
    # Only for acts that a program requested over HTTP: whether the act continues or begins a row, and why.
    origin: str = ""

    def __post_init__(self) -> None:
        self.steps = self.steps or (message_of(self.generation),)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("reward", "team_reward"):
            check_reward(f"the {name} of agent {self.agent} in turn {self.turn}", value)
        elif name not in names_of(Reply) and not name.startswith("_"):
            raise UnknownName.of(Reply, name)
        super().__setattr__(name, value)

    @property
    def agent(self) -> str:
        return self.act.agent

    @property
    def role(self) -> str:
        return self.act.role

    @property
    def policy(self) -> str:
        return self.act.policy

    @property
    def instance(self) -> int:
        return self.act.instance

    @property
    def turn(self) -> int:
        return self.act.turn

    @property
    def branch(self) -> int:
        return self.act.branch

    @property
    def text(self) -> str:
        return self.generation.text

    @property
    def message(self) -> Message:
        """The last message of the act. With tools, the messages before it are in `steps`."""
        return self.steps[-1]

    @property
    def open_calls(self) -> list[ToolCall]:
        """The calls that the workflow must answer, each with a message: `call.answered(result)`."""
        return [call for call in self.tool_calls if call.result is None and call.error is None]

    @property
    def tool_reward(self) -> float | None:
        """The sum of the rewards of the act's calls; None if no call has a reward. It is added to `reward`."""
        rewards = [call.reward for call in self.tool_calls if call.reward is not None]
        return sum(rewards) if rewards else None

    @property
    def local_reward(self) -> float:
        """The act's own reward, which is the sum of `reward` and the rewards of its tool calls."""
        return (self.reward or 0.0) + (self.tool_reward or 0.0)

    @property
    def truncated(self) -> bool:
        return self.generation.stop_reason == "length"

    def parse(self, codec: Codec[T]) -> T | Malformed:
        """Return the value in the text, or Malformed with the reason. Malformed also marks the reply as malformed."""
        value = codec.parse(self.text)
        self.parses.append(repr(value))
        if isinstance(value, Malformed):
            self.mark_malformed(value.reason)
        return value

    def mark_malformed(self, reason: str) -> None:
        """Mark the reply as malformed by a rule of the workflow, so that `format_penalty` applies."""
        self.malformed = reason

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        failed = sum(call.error is not None for call in self.tool_calls)
        calls = f", {len(self.tool_calls)} calls" if self.tool_calls else ""
        calls += f" ({failed} failed)" if failed else ""
        return f"<Reply of {self.agent}, turn {self.turn}{calls}: {self.text!r:.60}>"


# The verdict of an agent on a proposal (True: right, False: wrong, None: unreadable), and whether the proposal is
# really right.
CheckedVerdict = tuple[bool | None, bool]


@dataclass(frozen=True)
class Outcome(KnownNames):
    """How a session ended: the team's `answer`, its `reward`, and `info` for the metrics.

    If `reward` is None, verl's reward function scores `answer`, unless acts have their own rewards. With
    `score_answer`, that function scores the answer even if acts have rewards. `verdicts` maps agents to their verdicts,
    which validation compares with the ground truth.
    """

    answer: Reply | str | None = None
    reward: float | None = None
    score_answer: bool = False
    info: Mapping[str, object] = field(default_factory=dict)
    verdicts: Mapping[str, Sequence[CheckedVerdict]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        answer: object = self.answer
        if inspect.iscoroutine(answer):
            answer.close()
            value = f"the answer is the coroutine {answer.__qualname__}, as `await` is missing before it"
            raise WorkflowError(value, rule="it is a Reply, a text or None", fix="write `await`")
        if not isinstance(answer, Reply | str | None):
            rule, fix = "it is a Reply, a text or None", "return Outcome(answer=reply)"
            raise WorkflowError(f"the answer is {answer!r:.40}", rule=rule, fix=fix)
        check_reward("the reward of an Outcome", self.reward)
        check_reward("acc in the info of an Outcome", self.info.get("acc"))
        if VERDICTS in self.info:
            value = f"Outcome(info={{{VERDICTS!r}: ...}})"
            rule = "info has numbers and texts for the metrics; verdicts have their own field"
            raise WorkflowError(value, rule=rule, fix="return Outcome(verdicts={agent: [(verdict, right), ...]})")

    @property
    def text(self) -> str | None:
        return self.answer.text if isinstance(self.answer, Reply) else self.answer
