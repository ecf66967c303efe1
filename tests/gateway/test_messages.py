import pytest

from verl_mas.gateway.messages import Canonical, canonical, spellings


def call(arguments, name="add", **more):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"role": "assistant", "content": "4"}, {"role": "assistant", "content": "4 "}, False),
        ({"role": "user", "content": "4", "name": "a"}, {"role": "user", "content": "4", "name": "b"}, False),
        ({"role": "tool", "content": "4", "name": "a"}, {"role": "tool", "content": "4", "name": "b"}, True),
        ({"role": "user", "content": "4"}, {"role": "tool", "content": "4"}, False),
        ({"role": "user", "content": [image("a")]}, {"role": "user", "content": [image("b")]}, False),
        (call('{"a": 1}'), call('{"a": 1.5}'), False),
        (call('{"a": 1}'), call('{"a": 1}', name="sub"), False),
        (call('{"a": 1, "b": 2}', id="x"), call({"b": 2, "a": 1}), True),
    ],
)
def test_messages_are_equal_if_a_template_renders_them_equally(one, other, same):
    assert (canonical(one) == canonical(other)) == same


def test_a_thought_may_begin_in_the_prompt_and_may_come_back():
    thought = Canonical("assistant", "why</think>a")
    assert [each.content for each in spellings(thought)] == ["why</think>a", "a"]
    assert [each.content for each in spellings(thought, "END")][2:] == ["a", "aEND"]
    assert [*spellings(thought, thinking=False)] == [thought]
