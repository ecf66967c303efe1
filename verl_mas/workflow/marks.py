"""Marks of turns, which contents must not spell: a chat template renders to text, and the tokenizer reads them there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeVar

from verl_mas.util.text import in_texts
from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.client import Request

T = TypeVar("T")
# As model families write them. Tags within a turn, such as <think> and <tool_call>, are text of replies.
USUAL = re.compile(
    r"<[|｜][^\s<>]{1,64}>|<\w{1,64}[|｜]>|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>|</?s>|<</?SYS>>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]"
)


@dataclass(frozen=True)
class Marks:
    """The usual ones for an endpoint, whose tokenizer is not here; else those that its policy reads."""

    pattern: re.Pattern[str] = USUAL

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Marks:
        """Its special tokens, and what its template marks turns with: a text for some families, an added token that is
        not called special for others."""
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        marks = {*tokenizer.all_special_tokens, *added, *USUAL.findall(str(tokenizer.chat_template))}
        texts = sorted({mark.strip() for mark in marks} - {""}, key=len, reverse=True)
        return cls(re.compile("|".join(map(re.escape, texts)) or "(?!)"))

    def written_out(self, value: T) -> tuple[T, int]:
        """The value with a space in each mark, which makes it ordinary text, and how many there were."""
        found = 0

        def change(text: str) -> str:
            nonlocal found
            count = -1
            while count:  # the rest of a mark may be another one
                text, count = self.pattern.subn(lambda mark: f"{mark[0][0]} {mark[0][1:]}" if mark[0][1:] else " ", text)
                found += count
            return text

        return in_texts(change, value), found

    def out_of(self, request: Request) -> tuple[Request, int]:
        """The request without marks, and how many there were. Messages that are tokens already count once."""
        known = request.continues.known if request.continues else 0
        before, _ = self.written_out(list(request.messages[:known]))
        (added, tools), forged = self.written_out((list(request.messages[known:]), list(request.tools)))
        return replace(request, messages=[*before, *added], tools=tools), forged
