"""The loop of an act with tools: generate a reply, make its tool calls, and generate again with the results. All
replies of an act are in one row."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeAlias

from verl_mas.config.schema import AgentSpec
from verl_mas.config.values import Checked, Count, Range
from verl_mas.errors import EngineLost, ForeignError, SessionFault, foreign
from verl_mas.util.loops import together
from verl_mas.util.text import encodable
from verl_mas.workflow.client import Continuation, Generation, Message, Request, ToolCall, message_of
from verl_mas.workflow.clock import Clock, ended, start, uncounted
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.tools import CallContext, Tool, ToolResult

Generate = Callable[[Request], Awaitable[Generation]]
Answer: TypeAlias = tuple[ToolCall, Sequence[object]]  # a call with its outcome, and the images of its result
logger = logging.getLogger(__name__)
ERROR_CHARS = 4096  # limit of an error text; usual errors are shorter, and verl has no such limit
# Pairs of a tool and an error type whose first error was logged with its traceback.
_LOGGED: set[tuple[str, type[BaseException]]] = set()


@dataclass(frozen=True)
class ToolLimits(Checked):
    """Limits of the tools of all agents. In training, verl's `rollout.multi_turn` sets them."""

    parallel_calls: Count = 16
    """Maximum number of calls that are made for one reply. Further calls are removed from its message."""

    result_chars: Count = 16_384
    """Maximum number of characters of a result. A longer result is cut."""

    truncate_side: Literal["left", "middle", "right"] = "middle"
    """The side on which a result that is too long is cut."""

    rounds: Annotated[int, Range(0)] | None = None
    """Maximum number of rounds of tool calls in an act. None: only the agent's `max_tool_rounds` limits the rounds."""

    def cut(self, text: str) -> str:
        """Cut a text to `result_chars` characters, and mark the cut as verl does."""
        most = self.result_chars
        if len(text) > most:
            if self.truncate_side == "left":
                text = f"(truncated)...{text[len(text) - most :]}"
            elif self.truncate_side == "right":
                text = f"{text[:most]}...(truncated)"
            else:
                text = f"{text[: most // 2]}...(truncated)...{text[len(text) - most // 2 :]}"
        return text


@dataclass
class ToolLoop:
    """The tool loop of one candidate. It fills in the reply of the candidate."""

    generate: Generate
    request: Request
    reply: Reply
    tools: Mapping[str, Tool]
    spec: AgentSpec
    limits: ToolLimits

    def __post_init__(self) -> None:
        self._context = CallContext(self.request.fields, list(self.request.messages))
        self._calls: list[ToolCall] = []
        self._left = self.spec.max_tool_calls

    async def run(self) -> None:
        """Call tools and generate again, until a reply has no tool calls, or has calls that the workflow answers."""
        messages, generation = self._context.messages, self.reply.generation
        made = [generation]
        while True:
            calls, left_out = self._split(generation.tool_calls, len(made) - 1)
            messages.append(message_of(generation, calls))
            if not calls or self._for_workflow(calls):
                self._calls += [*calls, *left_out]
                break
            known = len(messages)
            self._context.continues = Continuation(generation, known)
            messages += await self._answers(calls)
            self._calls += left_out
            continues = Continuation(generation, known, self.reply.row)
            continued = replace(self.request, messages=list(messages), round=len(made), continues=continues)
            generation = await self.generate(continued)
            made.append(generation)
        if made[1:]:
            sums = {name: sum(getattr(one, name) for one in made) for name in ("sampled", "aborts", "forged_tokens")}
            generation = replace(generation, versions=[pair for one in made for pair in one.versions], **sums)
        reply, reply.sampled = self.reply, [one.sampled for one in made]
        reply.generation, reply.steps = generation, messages[len(self.request.messages) :]
        reply.tool_calls, reply.tool_state = self._calls, self._context.state

    def _for_workflow(self, calls: Sequence[ToolCall]) -> bool:
        """Whether one of the called tools has no function. Then the workflow answers the calls, and the act ends."""
        return any(call.name in self.tools and self.tools[call.name].call is None for call in calls)

    def _split(self, calls: Sequence[ToolCall], rounds: int) -> tuple[Sequence[ToolCall], list[ToolCall]]:
        """Split the calls of a reply into calls to answer, and calls beyond a limit, which get the reason as their
        `error`."""
        allowed, own = self.limits.rounds, self.spec.max_tool_rounds
        most = own if allowed is None else min(allowed, own)
        # Calls for the workflow end the act, so they need no further round.
        first = calls[: self.limits.parallel_calls]
        limit = self.limits.parallel_calls if rounds < most or self._for_workflow(first) else 0
        why = f"not called: the limit is {f'{limit} per reply' if limit else f'{most} rounds per act'}"
        return calls[:limit], [replace(call, error=why, left_out=True) for call in calls[limit:]]

    async def _answers(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Make the calls, and return the messages with their results in the same order."""
        within, beyond = calls[: self._left], calls[self._left :]
        self._left -= len(within)
        with uncounted():
            answers = await self._run_calls(within)
        why = f"Error: not called, as an act can make {self.spec.max_tool_calls} calls"
        answers += [_failed(call, why) for call in beyond]
        self._calls += [call for call, _ in answers]
        return [call.answered(_content(call, images)) for call, images in answers]

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Answer]:
        """Make all calls concurrently, except that calls of `in_order` tools are made one after another."""
        answers: dict[int, Answer] = {}

        async def one_after_another(indices: Sequence[int]) -> None:
            for index in indices:
                answers[index] = await self._answer(calls[index])

        groups: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            tool = self.tools.get(call.name)
            groups.setdefault(-1 if tool is not None and tool.in_order else index, []).append(index)
        await together([partial(one_after_another, indices) for indices in groups.values()])
        return [answers[index] for index in range(len(calls))]

    async def _answer(self, call: ToolCall) -> Answer:
        """Make one call and return its answer. An error, such as an unknown tool, becomes an answer with verl's
        wording."""
        tool = self.tools.get(call.name)
        if tool is None or tool.call is None:
            return _failed(call, f"Unknown function '{call.name}'. Available tools: {list(self.tools)}")
        try:
            json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            return _failed(call, f"Invalid JSON in arguments for '{call.name}': {error}")
        arguments = call.parameters
        if arguments is None:
            return _failed(call, f"Invalid arguments for '{call.name}': they are not a JSON object, or one too deep")
        limit, started = math.inf if tool.acts else self.spec.tool_timeout_s, time.perf_counter()
        clock = Clock(limit)
        running = start(_result(call.name, partial(tool.call, arguments, self._context)), clock)
        if not await ended(running, clock):
            result: ToolResult | str = f"it took more than {limit:g} s"
        else:
            result = "it was cancelled" if running.cancelled() else running.result()
        timed = replace(call, seconds=time.perf_counter() - started)
        if isinstance(result, str):
            return _failed(timed, f"Error executing tool '{call.name}': {result}")
        text = encodable(self.limits.cut(str(result.value)))
        return replace(timed, result=text, reward=result.reward), result.images


def _failed(call: ToolCall, why: str) -> Answer:
    return replace(call, error=encodable(why[:ERROR_CHARS]), reward=0.0), ()


async def _result(name: str, call: Callable[[], Awaitable[object]]) -> ToolResult | str:
    """Call a tool and return its result, whose value is a text. If the tool raises an exception, return the message of
    the exception, unless this exception ends the session or the run."""
    try:
        with foreign(EngineLost, SessionFault, KeyboardInterrupt, exits=True):
            returned = await call()
            result = returned if isinstance(returned, ToolResult) else ToolResult(returned)
            return replace(result, value=_text(result.value))
    except ForeignError as failed:
        error = failed.error
        # Log the first error per tool and type. Wrong arguments from a model raise TypeErrors. If only one error per
        # tool were logged, a TypeError could hide other errors of the tool.
        if (name, type(error)) not in _LOGGED:
            _LOGGED.add((name, type(error)))
            logger.warning("the first %s of the tool %s in this process", type(error).__name__, name, exc_info=error)
        return str(error) or type(error).__name__


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    """Convert numbers and arrays of NumPy and torch for JSON. Raises TypeError for other objects."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it returned {type(value).__name__}, which is neither a text nor JSON")


def _content(call: ToolCall, images: Sequence[object]) -> object:
    text = call.result if call.error is None else call.error
    if not images:
        return text
    parts: list[Message] = [{"type": "image", "image": image} for image in images]
    return [*parts, {"type": "text", "text": text}] if text else parts
