"""Converts the acts and faults of a session to plain data for `Session.record`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from verl_mas.errors import SessionFault
from verl_mas.run_folder.records import Record, plain
from verl_mas.workflow.client import Message, ToolCall
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import Row

# Maps a message part with an image to the part that replaces it in the record.
Images: TypeAlias = Callable[[Message], Message]
# Returns one text per token. Joined, the texts are the text of all tokens.
TokenTexts: TypeAlias = Callable[[Sequence[int]], Sequence[str]]


@dataclass(frozen=True)
class Recording:
    """Options of session records."""

    max_text_chars: int | None = None
    images: Images = lambda part: {"type": part.get("type")}
    tokens: Mapping[str, TokenTexts] = field(default_factory=dict)  # by policy; other policies record no tokens


def fault_record(attempt: int, fault: SessionFault) -> Record:
    return {
        "attempt": attempt,
        "kind": fault.kind.value,
        "agent": fault.agent,
        "turn": fault.turn,
        "cause": fault.cause,
        "traceback": fault.traceback,
    }


def act_record(reply: Reply, row: Row, clip: Clip) -> Record:
    generation = reply.generation
    return {
        "key": None if row.key is None else str(row.key),
        **vars(reply.act),
        "committed": reply.committed,
        "trainable": reply.trainable,
        "probe": reply.probe,
        "line": reply.line,
        "messages": clip.messages(reply.messages),
        "text": clip.text(reply.text),
        # Only acts with tool calls have `steps`, because without calls `text` is the whole reply.
        "steps": clip.messages(reply.steps) if reply.tool_calls else [],
        "tool_calls": [_call(call, clip) for call in reply.tool_calls],
        "prompt_tokens": len(generation.prompt_ids),
        "response_tokens": len(generation.response_ids),
        "sampled_tokens": generation.sampled,
        "tokens": clip.tokens(reply),
        "stop_reason": generation.stop_reason,
        "temperature": generation.temperature,
        "versions": generation.versions,
        "aborts": generation.aborts,
        "forged_tokens": generation.forged_tokens,
        **({"origin": reply.origin} if reply.origin else {}),
        "parses": [clip.text(parse) for parse in reply.parses],
        "malformed": reply.malformed,
        # The local reward is split into parts only if tools gave a reward.
        "reward": {
            **vars(row.reward),
            "parts": {} if reply.tool_reward is None else {"act": reply.reward or 0.0, "tools": reply.tool_reward},
        },
        "advantage": None,
        "started": round(reply.started, 4),
        "seconds": round(reply.seconds, 4),
    }


def _call(call: ToolCall, clip: Clip) -> Record:
    return {
        "name": call.name,
        "arguments": clip.text(call.arguments),
        "result": clip.text(call.result),
        "error": clip.text(call.error),
        "reward": call.reward,
        "left_out": call.left_out,
        "seconds": round(call.seconds, 4),
    }


class Clip:
    """Shortens long texts in messages, and converts messages to plain data."""

    def __init__(self, how: Recording):
        self.how, self.limit = how, how.max_text_chars
        # Candidates and turns share messages, so each message is shortened once.
        self._known: dict[int, tuple[Message, Message]] = {}

    def text(self, text: str | None) -> str | None:
        if text is None or self.limit is None or len(text) <= self.limit:
            return text
        return f"{text[: self.limit]}... ({len(text)} characters)"

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def tokens(self, reply: Reply) -> list[list[object]] | None:
        """List the sampled tokens of an act with their log-probs, but at most `max_text_chars` tokens. None if tokens
        are not recorded."""
        texts = self.how.tokens.get(reply.policy)
        if texts is None or not reply.generation.sampled:
            return None
        ids, log_probs = sampled_of(reply)
        tokens: list[list[object]] = list(map(list, zip(texts(ids), log_probs, strict=True)))
        # A token usually has at least one character, so a limit of characters also limits tokens.
        return tokens[: self.limit]

    def _message(self, message: Message) -> Message:
        known = self._known.get(id(message))
        if known is not None:
            return known[1]
        clipped = {**message, "content": self._content(message.get("content"))}
        if self.limit is not None and message.get("tool_calls"):
            clipped["tool_calls"] = [self._called(call) for call in message["tool_calls"]]
        self._known[id(message)] = (message, clipped)
        return clipped

    def _called(self, call: Record) -> Record:
        """Return a tool call with its arguments, as a shortened text if they are long."""
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False, default=plain)
        clipped = self.text(text)
        return call if clipped == text else {**call, "function": {**function, "arguments": clipped}}

    def _content(self, content: object) -> object:
        if content is None or isinstance(content, str):
            return self.text(content)
        return [self._part(part) for part in cast("list[Message]", content)]

    def _part(self, part: Message) -> Message:
        kind = part.get("type")
        if kind == "text":
            return {**part, "text": self.text(part.get("text"))}
        return self.how.images(part) if kind in ("image", "image_url") else {"type": kind}


def sampled_of(reply: Reply) -> tuple[list[int], list[float | None]]:
    """Return the sampled tokens of an act and their log-probs. They are the last `generation.sampled` sampled tokens of
    its row."""
    generation = reply.generation
    ids, mask, log_probs = generation.response_ids, generation.response_mask, generation.log_probs
    places = [place for place, sampled in enumerate(mask) if sampled] if mask else range(len(ids))
    last = places[len(places) - generation.sampled :]
    if log_probs is None or len(log_probs) < len(ids):
        return [ids[place] for place in last], [None] * len(last)
    return [ids[place] for place in last], [log_probs[place] for place in last]
