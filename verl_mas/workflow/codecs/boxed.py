r"""`\boxed{42}`"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_mas.workflow.codecs.base import Malformed, checked, only, visible

BOX = "\\boxed{"
MARKS = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Boxed:
    r"""The text in the one `\boxed{...}` of a reply."""

    def prompt(self) -> str:
        return "Put your final answer within \\boxed{}."

    def render(self, value: str) -> str:
        text = f"{BOX}{value}}}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        answer, boxes, end = visible(text), [], 0
        while (box := answer.find(BOX, end)) >= 0:
            start = box + len(BOX)
            closing = _closing_brace(answer, start)
            if closing is None:
                return Malformed("a box that is never closed")
            end = closing
            boxes.append(answer[start:end].strip())
            if BOX in boxes[-1]:
                return Malformed("a box inside a box")
        value = only(boxes, "box")
        return value or (value if isinstance(value, Malformed) else Malformed("an empty box"))


def _closing_brace(text: str, start: int) -> int | None:
    """The index of the brace that closes the one before `start`. Escaped braces do not count."""
    depth = 1
    for mark in MARKS.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return mark.start()
    return None
