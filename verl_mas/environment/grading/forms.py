"""The forms in which math teams request an answer, and the forms that verl's own scorers read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from verl_mas.environment.grading.math import BoxedAnswer
from verl_mas.workflow.codecs import Codec, Malformed, Tag, checked, visible

AnswerForm: TypeAlias = Literal["box", "hashes", "tag"]
HASHES = "####"


@dataclass(frozen=True)
class Hashes:
    """A codec for the text after the last `####`, as in GSM8K."""

    def prompt(self) -> str:
        return f'End with "{HASHES} " and your final answer.'

    def render(self, value: str) -> str:
        text = f"{HASHES} {value}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        found = re.findall(rf"{HASHES}(.*)", visible(text))
        if not found:
            return Malformed(f"no {HASHES}")
        return found[-1].strip() or Malformed(f"nothing after {HASHES}")


FORMS: Mapping[AnswerForm, Codec[str]] = {"box": BoxedAnswer(), "hashes": Hashes(), "tag": Tag("answer")}
# Text by which a prompt that requests a form is recognised.
MARKS: Mapping[AnswerForm, str] = {"box": "\\boxed", "hashes": HASHES, "tag": "<answer>"}
# Prefixes of the data sources whose scorer in verl reads a form other than a box.
OF_VERL: Mapping[str, AnswerForm] = {"openai/gsm8k": "hashes", "searchR1_": "tag"}


def form_of_verl(data_source: str) -> AnswerForm:
    """Return the form that verl's own scorer of a source reads."""
    return next((form for start, form in OF_VERL.items() if data_source.startswith(start)), "box")
