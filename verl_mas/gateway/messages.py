"""Compares messages. A program may send a reply back in a spelling that differs from the spelling that it received."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from verl_mas.gateway.endpoints.openai import calls_of, text_of
from verl_mas.workflow.client import Message, ToolCall

# A chat template may write `<think>` into the prompt. A reply then contains only `</think>`.
THOUGHT = re.compile(r"\A(?:\s*<think>)?.*?</think>\s*", re.DOTALL)


class Canonical(NamedTuple):
    """The parts of a message that chat templates read, in a form that can be compared. It leaves out the ids of calls
    and the fields that clients add."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    name: str = ""  # empty unless the role is user


def canonical(message: Message) -> Canonical:
    """Reduce a message to the parts that are compared. Its content is text and, for a user, images."""
    role = str(message["role"])
    calls = tuple((call.name, _plain(call)) for call in calls_of(message))
    name = str(message.get("name") or "") if role == "user" else ""
    return Canonical(role, text_of(message) + _images(message), calls, name)


def _images(message: Message) -> str:
    """Join the data URLs of a message's images."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(part["image_url"]["url"] for part in parts if part.get("type") == "image_url")


def _plain(call: ToolCall) -> str:
    """Return the arguments of a call as JSON with sorted keys. Arguments that are not JSON stay as they are."""
    return call.arguments if call.parameters is None else json.dumps(call.parameters, sort_keys=True)


def spellings(served: Canonical, stopped_by: str | None = None, *, thinking: bool = True) -> Iterator[Canonical]:
    """Yield the spellings in which a program may send a reply back: as it was served, with the stop string that ended
    it, and, if `thinking`, without its thought."""
    ends = [served] if stopped_by is None else [served, served._replace(content=served.content + stopped_by)]
    yield from ends
    if thinking and (thought := THOUGHT.match(served.content)):
        yield from (one._replace(content=one.content[thought.end() :]) for one in ends)


def difference(known: Sequence[Canonical], given: Sequence[Canonical], start: int) -> str:
    """Describe the first difference between two transcripts, to explain why a request started a new row. Both
    transcripts are equal before message `start`; `known` and `given` are their messages from `start` on."""
    if not given:
        return "it was asked before"
    if not known:
        return f"messages[{start}] ({given[0].role}) follows no reply"
    old, new = known[0], given[0]
    if new in known:
        return f"{known.index(new)} messages from messages[{start}] ({old.role}) on were dropped"
    if old in given:
        return f"{given.index(old)} messages were inserted at messages[{start}] ({new.role})"
    if old.role != new.role:
        return f"messages[{start}] is of the {new.role}, and was of the {old.role}"
    if start == 0 and new.role == "system":
        return "the system prompt changed"
    return f"messages[{start}] ({new.role}) was edited"
