"""Judged by the rendered prompt, no text, name or key of a request becomes a special token."""

import random
import sys
from pathlib import Path

import pytest

from verl_mas.errors import SessionFault
from verl_mas.rollout.forgery import Net
from verl_mas.workflow.client import Request
from verl_mas.workflow.marks import marks_in, marks_of, plain_request

sys.path.append(str(Path(__file__).parents[1]))
from workflow.test_marks import FAMILIES, tokenizer_of

# A template that writes parts unchanged, names and keys as tags, and calls in the format of Qwen3-Coder.
CONTENT = """{% macro text(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}
{{- '<|image_pad|>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}{% endmacro %}"""
CODER = (
    CONTENT
    + """{% for tool in tools or [] %}<name>{{ tool.function.name }}</name>
{%- for key, value in tool.function.parameters.items() %}<{{ key }}>{{ value }}</{{ key }}>{% endfor %}{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ text(message.content) }}
{%- for call in message.tool_calls or [] %}<tool_call><function={{ call.function.name }}>
{%- for key, value in call.function.arguments.items() %}<parameter={{ key }}>{{ value }}</parameter>{% endfor %}
{%- endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"""
)
TEMPLATES = {"coder": ("qwen3", CODER), **{name: (name, FAMILIES[name]["template"]) for name in FAMILIES}}
COMPOSITIONS = 100_000  # total of the nightly test, over all templates


class Case:
    """A tokenizer with a template, and random requests with fragments of its marks in every place."""

    def __init__(self, name: str):
        self.name, (family, template) = name, TEMPLATES[name]
        self.tokenizer = tokenizer_of(family)
        self.tokenizer.chat_template = template
        marks = sorted(marks_in(self.tokenizer))
        special = {self.tokenizer.convert_tokens_to_ids(mark) for mark in marks} - {self.tokenizer.unk_token_id, None}
        self.special, self.net, self.marks = special, Net(frozenset(special)), marks_of(self.tokenizer)
        cuts = [mark[i:j] for mark in marks for i in (0, 1, 2) for j in (len(mark), len(mark) - 1, len(mark) - 2)]
        self.fragments = [*marks, *cuts, *(mark[: len(mark) // 2] for mark in marks), "x", "\n", " ", "system"]

    def ids(self, messages, tools):
        return self.tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=True, return_dict=False)

    def request(self, rng: random.Random, text=None) -> Request:
        def fragment() -> str:
            return text or "".join(rng.choices(self.fragments, k=rng.randrange(1, 4)))

        user = {"role": "user", "content": fragment()}
        reply = {"role": "assistant", "content": fragment()}
        if self.name != "coder":
            return Request("a", "s", 0, [user, reply, {"role": "user", "content": fragment()}])
        parts = [{"type": "text", "text": fragment()}, {"type": "text", "text": fragment()}, {"type": "image"}]
        user["content"] = [*parts, {"type": "text", "text": fragment()}]
        call = {"function": {"name": fragment(), "arguments": {fragment(): fragment()}}}
        schema = {"type": "object", "properties": {}, fragment(): fragment()}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        result = {"role": "tool", "content": fragment()}
        return Request("a", "s", 0, [user, {**reply, "tool_calls": [call]}, result], tools=tools)

    def specials(self, request: Request) -> int:
        return sum(map(self.special.__contains__, self.ids(list(request.messages), list(request.tools))))

    def check(self, rng: random.Random) -> None:
        asked = self.request(rng)
        plain, _ = plain_request(asked, self.marks)
        assert self.specials(plain) == self.specials(self.request(rng, text="x")), asked
        self.net.check(list(plain.messages), list(plain.tools), self.ids)


@pytest.fixture(scope="module", params=TEMPLATES)
def case(request):
    return Case(request.param)


def test_no_fragment_in_any_place_becomes_a_special_token(case):
    rng = random.Random(1)
    for _ in range(40):
        case.check(rng)


@pytest.mark.nightly
def test_no_composition_of_texts_becomes_a_mark(case):
    rng = random.Random(2)
    for _ in range(COMPOSITIONS // len(TEMPLATES) + 1):
        case.check(rng)


def test_what_marks_does_not_see_is_caught_by_the_net_with_its_place():
    """A template completes a harmless text to a mark in an unforeseen way."""
    case = Case("coder")
    case.tokenizer.chat_template = CODER.replace("{{ text(message.content) }}", "<|im{{ text(message.content) }}")
    messages = [{"role": "user", "content": "a < b"}, {"role": "tool", "content": "_start|>system"}]
    with pytest.raises(SessionFault, match=r"messages\[1\], of role tool, would become a special token"):
        case.net.check(messages, [], case.ids)
    case.net.check([messages[0], {"role": "tool", "content": "start|>system"}], [], case.ids)


def test_a_template_that_chooses_its_marks_by_a_text_is_no_forgery():
    case = Case("qwen3")
    case.tokenizer.chat_template = "{{ '<|im_end|>' if 'stop' in messages[0].content else '' }}<|im_start|>"
    case.net.check([{"role": "user", "content": "if a < b: stop"}], [], case.ids)
