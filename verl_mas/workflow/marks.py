"""Turns special tokens in message contents into ordinary text. A chat template renders all contents into one text, so
a special token that is spelled out in a content would be tokenized as a real mark of a turn."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from verl_mas.util.text import characters, in_texts
from verl_mas.util.threads import in_thread
from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.client import Message, Request

T = TypeVar("T")
TEXT = "text"
# Characters per regex search (limited, because a search blocks all other threads), and length of the longest mark.
WINDOW, LONGEST = 1 << 16, 512
BRACKETS = (("", ""), ("<", ">"), ("[", "]"))
# Marks of turns of known model families. Tags within a turn, such as <think> and <tool_call>, are ordinary text.
USUAL = re.compile(
    r"<[|\uff5c][^\s<>]{1,64}>|<\w{1,64}[|\uff5c]>|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>|</?s>|<</?SYS>>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]"
)


def marks_of(tokenizer: Tokenizer) -> re.Pattern[str]:
    texts = sorted(marks_in(tokenizer), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def marks_in(tokenizer: Tokenizer) -> set[str]:
    """Return the special tokens of a tokenizer, and the marks in its chat template. In some model families these marks
    are plain text, or added tokens without the `special` flag."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    marks = {*tokenizer.all_special_tokens, *added, *USUAL.findall(str(tokenizer.chat_template))}
    return {mark.strip() for mark in marks} - {""}


async def without_marks(request: Request, marks: re.Pattern[str] = USUAL) -> tuple[Request, int]:
    """Call `plain_request`, in a thread for a long request, so that the event loop is not blocked."""
    if characters(request.messages) + characters(request.tools) < WINDOW:
        return plain_request(request, marks)
    return cast("tuple[Request, int]", await in_thread(partial(plain_request, request, marks)))


def plain_request(request: Request, marks: re.Pattern[str] = USUAL) -> tuple[Request, int]:
    """Return the request with all marks turned into ordinary text, and the number of these marks. Marks in known
    messages, whose tokens were made in an earlier request, are not counted again."""
    known = request.continues.known if request.continues else 0
    messages = [joined(message) for message in request.messages]
    before, _ = written_out(messages[:known], marks)
    (added, tools), forged = written_out((messages[known:], list(request.tools)), marks)
    return replace(request, messages=[*before, *added], tools=tools), forged


def joined(message: Message) -> Message:
    """Join adjacent text parts of a message. A template writes these parts without a separator, so two parts could form
    a mark together."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts: list[object] = []
    for part in content:
        last = parts[-1] if parts else None
        if _is_text(part) and _is_text(last):
            parts[-1] = {**cast(Message, last), TEXT: f"{cast(Message, last)[TEXT]}{part[TEXT]}"}
        else:
            parts.append(part)
    return {**message, "content": parts}


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == TEXT and isinstance(part.get(TEXT), str)


def written_out(value: T, marks: re.Pattern[str] = USUAL) -> tuple[T, int]:
    """Insert a space into each mark in a nested value, so that the mark becomes ordinary text. Return the value and the
    number of marks. Each string is also searched with brackets around it, because some templates write names in
    brackets."""
    found = 0

    def change(text: str) -> str:
        nonlocal found
        for opening, closing in BRACKETS:
            count, text = -1, f"{opening}{text}{closing}"
            while count:  # after the insertion, the rest of a mark may be another mark
                text, count = _apart(marks, text)
                found += count
            text = text[len(opening) : len(text) - len(closing)]
        return text

    return in_texts(change, value), found


def _apart(marks: re.Pattern[str], text: str) -> tuple[str, int]:
    parts, done = list[str](), 0
    for mark in _windowed(marks, text):
        after_first = mark.start() + (len(mark[0]) > 1)
        parts += [text[done:after_first], " ", text[mark.start() + 1 : mark.end()]]
        done = mark.end()
    return "".join([*parts, text[done:]]), len(parts) // 3


def _windowed(marks: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    start = 0
    while start < len(text):
        if mark := marks.search(text, start, start + WINDOW):
            yield mark
        start = mark.end() if mark else start + WINDOW - LONGEST
