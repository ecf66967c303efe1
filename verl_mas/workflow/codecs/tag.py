"""`<answer>42</answer>`"""

from __future__ import annotations

from dataclasses import dataclass

from verl_mas.workflow.codecs.base import Malformed, between, checked, only, visible


@dataclass(frozen=True)
class Tag:
    """The text between `<name>` and `</name>`."""

    name: str = "answer"

    def prompt(self) -> str:
        return f"Put your answer between <{self.name}> and </{self.name}>."

    def render(self, value: str) -> str:
        text = f"<{self.name}>{value}</{self.name}>"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        found = between(visible(text), f"<{self.name}>", f"</{self.name}>")
        if isinstance(found, Malformed):
            return found
        value = only(found, f"<{self.name}>")
        return value or (value if isinstance(value, Malformed) else Malformed(f"empty <{self.name}>"))
